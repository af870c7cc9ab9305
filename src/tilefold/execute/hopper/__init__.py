"""The warp-specialised loops for sm_90, in Gluon. They take what fits them of the Triton executor's launches; the portable loops take the rest.

rows.py    the loop over columns         plan.py   which launches it takes, and its tiles
parts.py   what loops share              names.py  names that move between versions of Triton
"""
