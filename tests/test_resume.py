"A run that is killed anywhere and started again ends in the same bytes as one that was never killed."
import json, signal, subprocess, sys
from pathlib import Path

import pytest

from stackelberg_nb.records import Run

HERE = Path(__file__).parent
GAME = dict(pool='smoke', task='short', seed=1, T=2, D=8, K=8)
KILLS = [('stackelberg_dpo', 'combat'), ('stackelberg_dpo', 'judging'), ('stackelberg_dpo', 'DPO'), ('stackelberg_dpo', 'validation'),
         ('stackelberg_grpo', 'GRPO')]


def run(out, method, log, *fatal):
    args = json.dumps(dict(GAME, method=method, out=str(out)))
    return subprocess.run([sys.executable, HERE/'play_and_die.py', args, log, *map(str, fatal)], capture_output=True, text=True)


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    "method -> (hashes of a run that was never killed, its phases), played once each."
    made = {}
    def of(method):
        if method not in made:
            at = tmp_path_factory.mktemp(method)
            done = run(at/'run', method, at/'phases.json')
            assert not done.returncode, done.stderr
            made[method] = Run(at/'run').hashes(), json.loads((at/'phases.json').read_text())
        return made[method]
    return of


def middle(phases, iteration, name):
    "A forward pass in the middle of the phase `name` of an iteration."
    k = next(k for k, (i, n, _) in enumerate(phases) if (i, n) == (iteration, name))
    start, end = phases[k][2], phases[k + 1][2]
    assert end - start > 1, 'this phase runs no model'
    return (start + end)//2


@pytest.mark.parametrize('method, phase', KILLS)
def test_killed_in_the_second_iteration(reference, tmp_path, method, phase):
    hashes, phases = reference(method)
    killed = run(tmp_path/'run', method, tmp_path/'phases.json', middle(phases, 'iteration 2/2', phase))
    assert killed.returncode == -signal.SIGKILL
    assert Run(tmp_path/'run').done == 2 and Run(tmp_path/'run').hashes() != hashes
    resumed = run(tmp_path/'run', method, tmp_path/'phases.json')
    assert not resumed.returncode, resumed.stderr
    assert Run(tmp_path/'run').hashes() == hashes


def test_second_run_is_byte_identical_and_refuses_another_seed(reference, tmp_path):
    "The folder of a finished run stays as it was, and the error names the difference."
    hashes, _ = reference('stackelberg_dpo')
    assert not run(tmp_path/'run', 'stackelberg_dpo', tmp_path/'phases.json').returncode
    assert Run(tmp_path/'run').hashes() == hashes
    args = json.dumps(dict(GAME, seed=2, method='stackelberg_dpo', out=str(tmp_path/'run')))
    done = subprocess.run([sys.executable, HERE/'play_and_die.py', args, tmp_path/'phases.json'], capture_output=True, text=True)
    assert done.returncode and 'seed 1 there, 2 here' in done.stderr.splitlines()[-1]
    assert Run(tmp_path/'run').hashes() == hashes
