"""Situations that a benchmark gets into on a real cluster, as data: what is there, what happens, what must be seen.

rows.py        what a row of the table is
placing.py, starting.py, ending.py, disrupted.py, refused.py, steered.py, patient.py        the rows
acts.py        what happens meanwhile, and what is waited for before it does
scene.py       one row, being played
history.py     every version of every object, so that nothing that was ever shown is missed
rules.py       what must hold in every situation
"""
