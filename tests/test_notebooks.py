"The notebooks are the source: clean, tagged, and in step with the package and the README."
import json, os, shutil, subprocess, sys
from copy import deepcopy
from pathlib import Path

import pytest
from nbdev.clean import clean_nb

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
ROOMS = [p for p in NOTEBOOKS if p.parent == ROOT/'nbs' and p.stem != 'index']
EXPERIMENTS = [p for p in NOTEBOOKS if p.parent.name == 'experiments']
by_name = pytest.mark.parametrize
name = lambda p: p.name


def read(p): return json.loads(p.read_text(encoding='utf-8'))
def code(p): return [c for c in read(p)['cells'] if c['cell_type'] == 'code']
def source(c): return ''.join(c['source'])


@by_name('p', NOTEBOOKS, ids=name)
def test_clean(p):
    nb = read(p); before = deepcopy(nb)
    clean_nb(nb, allowed_cell_metadata_keys=['tags'])
    assert nb == before, f'run: nbdev_clean --fname {p.relative_to(ROOT)}'


@by_name('p', EXPERIMENTS, ids=name)
def test_first_code_cell_is_tagged_parameters(p):
    "Papermill puts its values after this cell; without the tag the defaults silently win."
    assert [i for i, c in enumerate(code(p)) if 'parameters' in c['metadata'].get('tags', [])] == [0]


@by_name('p', NOTEBOOKS, ids=name)
def test_no_committed_progress_timings_or_paths(p):
    outputs = json.dumps([c.get('outputs', []) for c in code(p)])
    for trace in ('it/s]', 's/it]', '/tmp/', '/root/', '/home/', str(ROOT)): assert trace not in outputs, trace
    assert not [o for c in code(p) for o in c.get('outputs', []) if o['output_type'] == 'error']


@by_name('p', ROOMS, ids=name)
def test_imports_only_go_down(p):
    "A notebook imports only from lower-numbered ones; those below 10 import neither torch nor transformers."
    order = {q.stem.partition('_')[2]: q.stem for q in ROOMS}
    lines = [l.split('#')[0] for c in code(p) for l in source(c).splitlines() if l.startswith(('from ', 'import '))]
    for l in lines:
        module = l.split()[1]
        if module.startswith('stackelberg_nb.'): assert order[module.split('.')[1]] < p.stem, l
        if p.stem < '10': assert module.split('.')[0] not in ('torch', 'transformers', 'trl', 'peft'), l


def test_exported(tmp_path):
    for f in ('settings.ini', 'setup.py'): shutil.copy(ROOT/f, tmp_path)
    shutil.copytree(ROOT/'nbs', tmp_path/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints'))
    env = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}
    subprocess.run([BIN/'nbdev_export'], cwd=tmp_path, env=env, check=True)
    made, kept = ({p.name: p.read_text() for p in (root/'stackelberg_nb').glob('*.py')} for root in (tmp_path, ROOT))
    assert sorted(made) == sorted(kept), 'run: nbdev_export'
    assert [n for n in made if made[n] != kept[n]] == [], 'run: nbdev_export'


def test_the_papers_tables_are_installed(tmp_path):
    "An editable install would hide a data file that setup.py forgets."
    for f in ('settings.ini', 'setup.py', 'README.md'): shutil.copy(ROOT/f, tmp_path)
    shutil.copytree(ROOT/'stackelberg_nb', tmp_path/'stackelberg_nb')
    subprocess.run([sys.executable, 'setup.py', '-q', 'build_py', '--build-lib', 'built'], cwd=tmp_path, check=True)
    made, kept = ({p.name: p.read_bytes() for p in (root/'stackelberg_nb'/'data').iterdir()} for root in (tmp_path/'built', ROOT))
    assert 'table1.csv' in kept and made == kept


@by_name('module', [p.stem.partition('_')[2] for p in ROOMS])
def test_imports_alone(module):
    "Every module imports in a fresh process; the rooms below 10 without torch."
    game = next(p for p in ROOMS if p.stem.partition('_')[2] == module).stem < '10'
    check = "; import sys; assert not {'torch', 'transformers'} & set(sys.modules)" if game else ''
    subprocess.run([sys.executable, '-c', f'import stackelberg_nb.{module}{check}'], check=True)


def test_leader_imports_fast():
    "Under 0.3 s more than starting Python; the best of five, since other work may run on the machine."
    import time
    def seconds(line):
        start = time.perf_counter(); subprocess.run([sys.executable, '-c', line], check=True)
        return time.perf_counter() - start
    cost = min(seconds('import stackelberg_nb.leader') for _ in range(5)) - min(seconds('pass') for _ in range(5))
    assert cost < .3, f'{cost:.2f} s'


def test_readme_is_the_index_notebook(tmp_path):
    from stackelberg_nb.pages import readme
    assert (ROOT/'README.md').read_text(encoding='utf-8') == readme(ROOT/'nbs'/'index.ipynb'), 'run: stackelberg readme'
