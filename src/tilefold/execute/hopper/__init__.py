"""The warp-specialised loops for sm_90, in Gluon. They take what fits them of the Triton executor's launches; the portable loops take the rest.

rows.py      the loop over columns                    plan.py           which launches it takes, and its tiles
columns.py   the loop over rows: gradients            columns_plan.py   the same for it
passes.py    small passes around it                   resolve.py        arg-max's open columns
parts.py     what loops share                         names.py          names that move between versions of Triton
"""
