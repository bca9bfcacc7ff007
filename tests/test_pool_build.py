"A pool that is being pretrained survives a kill, and processes that want it at the same time."
import os, signal, subprocess, sys, time

import pytest

BUILD = '''
from dataclasses import replace
from stackelberg_nb.tiny import SMOKE, build
build([replace(r, steps=60, seed=9) for r in SMOKE[:2]], progress=False)
'''


def start(cache):
    "A process, in a group of its own, that builds two small models into the folder `cache`."
    env = dict(os.environ, STACKELBERG_CACHE=str(cache), OMP_NUM_THREADS='1')
    return subprocess.Popen([sys.executable, '-c', BUILD], env=env, start_new_session=True)


def weights(cache):
    "Folder name -> the bytes of its weights, of the models that are there; part of a model is no model."
    return {f.parent.name: f.read_bytes() for f in (cache/'tiny').glob('*/model.safetensors') if '.part' not in f.parent.name}


@pytest.mark.skipif(os.name != 'posix', reason='kills a process group')
def test_killed_and_shared(tmp_path):
    "SIGKILL in the middle leaves nothing half-made; two processes at once then make exactly what an undisturbed one makes."
    once, killed = tmp_path/'once', tmp_path/'killed'
    assert start(once).wait(300) == 0
    p, deadline = start(killed), time.time() + 120
    while len(list((killed/'tiny').glob('*-*.lock'))) < 1 and time.time() < deadline: time.sleep(.05)
    os.killpg(p.pid, signal.SIGKILL)
    assert p.wait(30) == -signal.SIGKILL and len(weights(killed)) < 2
    assert [q.wait(300) for q in [start(killed), start(killed)]] == [0, 0]
    assert len(weights(once)) == 2 and weights(killed) == weights(once)
    assert not list((killed/'tiny').glob('*.part*'))
