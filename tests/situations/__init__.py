"""Situations that a benchmark gets into on a real cluster, as data: what is there, what happens, what must be seen.

placing.py, starting.py, ending.py, disrupted.py, refused.py, steered.py, patient.py       the rows
rows.py                what a row is
waits.py, acts.py      what is waited for, and what is done, while a row is played
reports.py             what runners write before they end
play.py, scene.py      play a row, and compare what has become of it
rules.py               what must hold in every situation, at every moment
history.py             every version of every object, so that nothing that was ever shown is missed
"""
