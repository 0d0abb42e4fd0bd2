"""Words that every text has, whatever it is about, in a few languages; cut as `worded` cuts them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_WORDS = {
    "en": """
        a about above after again all also although am among an and another any are aren around as
        at be because been before being below between both but by can cannot could couldn did didn
        do does doesn doing don down during each either else ever every few for from further get
        gets getting go goes going got had hadn has hasn have haven having he her here hers herself
        him himself his how however i if in into is isn it its itself just ll m me might mine more
        most much must my myself neither nor not now of off on once only onto or other others ought
        our ours ourselves out over own re s same shall she should shouldn since so some such t than
        that the their theirs them themselves then there these they this those though through thus
        to too under until up upon us ve very was wasn we well were weren what when where whether
        which while who whom whose why will with within without won would wouldn yes yet you your
        yours yourself yourselves""",
    "de": """
        aber als am an auch auf aus bei bin bis bist da dann das dass dem den der des die dies diese
        diesem diesen dieser dieses doch dort du durch ein eine einem einen einer eines er es für
        gegen hat hatte hatten ich ihm ihn ihr ihre im in ist ja kann kein keine können man mehr mit
        nach nicht noch nur ob oder ohne sehr sein seine seinen seiner sich sie sind so über um und
        uns unter vom von vor war waren was wenn werden wie wird wir wo wurde wurden zu zum zur""",
    "fr": """
        à au aux avec c ce ces cet cette d dans de des du elle elles en est et eu il ils j je l la
        le les leur leurs lui m ma mais mes même n ne ni nos notre nous on ont ou où par pas plus
        pour qu que qui s sa sans se ses si son sont sur ta te tes toi ton tu un une vos votre vous
        y été était étaient être""",
    "es": """
        a al como con de del desde donde e el ella ellas ellos en entre era eran es esa ese eso esta
        este esto están está fue fueron ha han hasta hay la las le les lo los más me mi muy ni no
        nos o para pero por porque que quien se sea ser si sin sobre son su sus también te tu un una
        uno unos y ya yo""",
    "it": """
        a ad ai al alla alle anche che chi ci come con da dai dal dalla de degli dei del della delle
        di e ed è era erano fu gli ha hanno i il in io l la le lo loro ma mi ne nei nel nella no noi
        non o per perché più quale quella quello questa questo se sei si sia sono su sua sue sul suo
        tra tu un una uno vi""",
    "pt": """
        a ao aos as com como da das de do dos e é ela elas ele eles em entre era eram essa esse esta
        este foi foram há isso isto já lhe mais mas me na nas não nem no nos o os ou para pela pelo
        por porque que quem se sem ser seu seus sua suas são também te tem um uma você""",
    "nl": """
        aan al als bij dan dat de der deze die dit door een en er had hadden heeft hem het hij hoe
        hun ik in is je kan maar me meer met mijn naar niet nog nu of om onder ook op over te tot
        uit van veel voor was wat we werd werden wie wij ze zich zij zijn zo zou""",
}

STOP: Mapping[str, frozenset[str]] = MappingProxyType(
    {language: frozenset(words.split()) for language, words in _WORDS.items()}
)
COMMON = frozenset().union(*STOP.values())
