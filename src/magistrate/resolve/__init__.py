"""Names become objects here and nowhere else: judges and engines from the words of a command or a file."""

from magistrate.judges.spelling import settable as settable
from magistrate.judges.spelling import spell as spell
from magistrate.judges.spelling import spelled as spelled
from magistrate.resolve.engine_words import ENGINES as ENGINES
from magistrate.resolve.engine_words import asks_none as asks_none
from magistrate.resolve.engine_words import engine as engine
from magistrate.resolve.engine_words import engine_entries as engine_entries
from magistrate.resolve.engine_words import engine_for as engine_for
from magistrate.resolve.engine_words import engine_kind as engine_kind
from magistrate.resolve.engine_words import read_states as read_states
from magistrate.resolve.engine_words import shorthands as shorthands
from magistrate.resolve.engine_words import warn_unasked as warn_unasked
from magistrate.resolve.judge_words import CALIBRATION as CALIBRATION
from magistrate.resolve.judge_words import DEFAULT_JUDGE as DEFAULT_JUDGE
from magistrate.resolve.judge_words import FILE as FILE
from magistrate.resolve.judge_words import JUDGES as JUDGES
from magistrate.resolve.judge_words import calibrated as calibrated
from magistrate.resolve.judge_words import folder_option as folder_option
from magistrate.resolve.judge_words import judge as judge
from magistrate.resolve.judge_words import judge_entries as judge_entries
from magistrate.resolve.judge_words import judges as judges
from magistrate.resolve.judge_words import keyed as keyed
from magistrate.resolve.judge_words import lies as lies
from magistrate.resolve.judge_words import split_options as split_options
from magistrate.resolve.judge_words import unenclosed as unenclosed
from magistrate.resolve.judge_words import unknown as unknown
