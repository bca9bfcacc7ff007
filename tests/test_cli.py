"The command line: bad input is one line and exit code 2, before any model loads."
import shutil, subprocess, sys
from pathlib import Path

import pytest

from stackelberg_nb import batch, game
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
    monkeypatch.setattr(batch, 'load_pool', load)


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


BAD_GRIDS = {
    'seeds = [0': 'is no TOML',
    'sedes = [0]': "did you mean 'seeds'",
    'pools = ["tinny"]': "did you mean 'tiny'",
    'preset = "papper"': "did you mean 'paper'",
    'seeds = []': 'seeds = []: must be a list, not empty',
    'seeds = [0, 0]': '0 stands twice',
    'pool_seeds = ["0"]': 'whole numbers',
    'notebook = "plya.ipynb"': 'not found',
    '[overrides]\ngama = 1': "did you mean 'gamma'",
    '[overrides]\nD = 0': 'D = 0',
    '[overrides]\npreset = "authors"': 'preset is no field of Config',
    '[overrides]\ngamma = nan': 'gamma = nan',
    'overrides = 3': 'must be a table',
    '[overrides]\ntrainer = "grpo"': 'fixed by the method sparta',
    '[[vary]]\ngamma = 0.1': 'each with a name',
    '[[vary]]\nname = "a"\n[[vary]]\nname = "a"': 'two cells are called',
    '[[vary]]\nname = "a"\nmethod = "sparta"': 'method is no field of Config',
    '[[vary]]\nname = "a"\nstrategy = "nearest"': "strategy = 'nearest'",
}


@pytest.mark.parametrize('text', BAD_GRIDS)
def test_bad_grid(capsys, tmp_path, text):
    "One line that names file and value; no folder, no model."
    file = tmp_path/'g.toml'
    file.write_text('tasks = ["sort"]\nmethods = ["sparta"]\n' + text)
    err = refused(capsys, 'batch', str(file), '--out', str(tmp_path/'runs'))
    assert str(file) in err and BAD_GRIDS[text] in err and not (tmp_path/'runs').exists()


def test_missing_grid_and_bad_workers(capsys, tmp_path):
    assert 'none.toml' in refused(capsys, 'batch', str(tmp_path/'none.toml'))
    assert 'workers = 0' in refused(capsys, 'batch', 'smoke', '--workers', '0', '--out', str(tmp_path/'runs'))
    assert "did you mean 'quick'" in refused(capsys, 'reproduce', '--scale', 'quik')


def test_list_plays_nothing(capsys, tmp_path):
    (tmp_path/'g.toml').write_text('tasks = ["sort"]\nmethods = ["sparta"]\nseeds = [3, 4]\n[[vary]]\nname = "near"\nstrategy = "lowest_diff"')
    for flag in ('--list', '--dry-run'):
        assert main(['batch', str(tmp_path/'g.toml'), flag, '--out', str(tmp_path/'runs')]) == 0
        head, *rows, last = capsys.readouterr().out.splitlines()
        assert [r.split() for r in rows] == [[f'tiny-0/sort-sparta-{s}-near', 'waiting', 'begin'] for s in (3, 4)]
        assert head.split() == ['cell', 'state', 'next'] and last == f"2 of 2 cells would run in {tmp_path/'runs'}"
    assert [p.name for p in tmp_path.iterdir()] == ['g.toml']


def test_every_example_grid(capsys):
    grids = sorted((Path(__file__).parent.parent/'nbs'/'experiments'/'grids').glob('*.toml'))
    assert {'smoke', 'tiny', 'tiny_adversary'} <= {g.stem for g in grids}
    for g in grids: assert main(['batch', str(g), '--list']) == 0 and capsys.readouterr().out.strip(), g


def test_status_and_list_need_no_torch(tmp_path):
    code = f"import sys; from stackelberg_nb.cli import main; main(['status', {str(tmp_path)!r}]); main(['batch', 'smoke', '--list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert '2 of 2 cells would run' in done.stdout


def test_report_of_no_grid(capsys, tmp_path):
    assert 'no grid.json' in refused(capsys, 'report', str(tmp_path))


def test_status_of_nothing(capsys, tmp_path):
    assert main(['status', str(tmp_path)]) == 0 and 'no runs' in capsys.readouterr().out
    assert 'no folder' in refused(capsys, 'status', str(tmp_path/'none'))
