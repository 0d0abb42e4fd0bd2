"""The documentation as a site: `make docs` runs `python -m docs.site`, which writes it to build/site.

sections.toml  which page stands where
pages.py       the written pages, the navigation, links
reference.py   the pages that are generated from the code
pictures.py    what commands print and pages show, taken from the real program
conf.py        the settings of Sphinx
built.py       whether every link of the built site leads somewhere, and nothing comes from another place
"""
