"The command line: bad input is one line and exit code 2, before any model loads."
import os, shutil, subprocess, sys
from pathlib import Path

import pytest

from stackelberg_nb import engine, game
from stackelberg_nb.cli import main
from stackelberg_nb.pools import Member, Pool

BAD = {
    '--pool tinny': "did you mean 'tiny'",
    '--task cuont': "did you mean 'count'",
    '--method sparat': "did you mean 'sparta'",
    '--preset papper': "did you mean 'paper'",
    '--set D=0': 'D = 0',
    '--set gamma=0 --set eta=gamma/K': 'gamma = 0',
    '--set K=none': "K = 'none'",
    '--set gama=1': "did you mean 'gamma'",
    '--set lambda_1=0.9': 'must sum to 1',
    '--seed -1': 'seed = -1',
    '--keep none': "keep = 'none'",
    '--method best_single --set untrained_eligible=false': 'T = 0',
    '--method stackelberg_grpo --set reputation_timing=duel': 'GRPO',
}


@pytest.fixture(autouse=True)
def no_model(monkeypatch):
    "Loading a model would fail the test."
    def load(*args, **kw): raise AssertionError('a model was loaded')
    monkeypatch.setattr(game, 'Engine', load)
    monkeypatch.setattr(game, 'load_pool', load)


def refused(capsys, *argv):
    assert main([*argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith('stackelberg: ') and err.count('\n') == 1
    return err


@pytest.mark.parametrize('args', BAD)
def test_bad_setting(capsys, tmp_path, args):
    assert BAD[args] in refused(capsys, 'play', '--out', str(tmp_path/'run'), *args.split())
    assert not (tmp_path/'run'/'cell.json').exists()


def test_read_only_folder(capsys, tmp_path):
    (tmp_path/'ro').mkdir(mode=0o555)
    assert 'read-only' in refused(capsys, 'play', '--out', str(tmp_path/'ro'))


def test_out_is_a_file(capsys, tmp_path):
    (tmp_path/'file').write_text('mine')
    assert 'another output folder' in refused(capsys, 'play', '--out', str(tmp_path/'file'))
    assert (tmp_path/'file').read_text() == 'mine'


@pytest.fixture
def small_disk(tmp_path):
    "A file system of 8 MB; skipped where mounting is not allowed."
    at = tmp_path/'small'; at.mkdir()
    if not shutil.which('mount') or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', at], capture_output=True).returncode:
        pytest.skip('mounting a tmpfs needs root')
    yield at
    subprocess.run(['umount', at], check=True)


def test_too_small_folder(capsys, small_disk):
    assert 'MB left' in refused(capsys, 'play', '--out', str(small_disk/'run'))


def test_pool_of_two():
    with pytest.raises(ValueError, match='at least 3'):
        Pool('pair', (Member('a', 'x'), Member('b', 'y')))


def test_help_needs_no_torch():
    code = "import sys; from stackelberg_nb.cli import main\ntry: main(['play', '--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert '--method' in done.stdout and 'Assertion' not in done.stderr


def test_status_of_nothing(capsys, tmp_path):
    assert main(['status', str(tmp_path)]) == 0 and 'no runs' in capsys.readouterr().out
    assert 'no folder' in refused(capsys, 'status', str(tmp_path/'none'))
