"A batch of throw-away notebooks: what fails, dies or leaves early is told apart, kept, and run again; parameters arrive as they left."
import json, os, subprocess, threading, time
from html.parser import HTMLParser

import nbformat, numpy as np, pytest

from stackelberg_nb import batch, report
from stackelberg_nb.batch import run_grid, run_notebook
from stackelberg_nb.config import ConfigError
from stackelberg_nb.records import write_json
from stackelberg_nb.report import status, summary

ENDS = '''import os, signal, sys
from pathlib import Path
with open('begun', 'a') as f: f.write(how + '\\n')
if not Path('mended').exists():
    if how == 'fails': 1/0
    if how == 'killed': os.kill(os.getpid(), signal.SIGKILL)
    if how == 'exits': sys.exit(0)
    if how == 'half a game': Path(out, 'cell.json').write_text('{"config": {"T": 2}, "versions": {"torch": "1"}}')'''
SHOW = '''from IPython.display import HTML
HTML('<img alt="a dot" src="data:image/png;base64,iVBORw0KGgo=">')'''


def notebook(path, *cells):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nb.cells[0].metadata['tags'] = ['parameters']
    nb.metadata['kernelspec'] = dict(name='python3', display_name='python3', language='python')
    nbformat.write(nb, path)
    return path


def strict(path):
    def no(x): raise AssertionError(f'{path}: {x} is not JSON')
    return json.loads(path.read_text(encoding='utf-8'), parse_constant=no)


def printed(path): return ''.join(line for c in strict(path)['cells'] for o in c.get('outputs', []) for line in o.get('text', []))


HOW = {'fails': 'failed', 'killed': 'failed', 'exits': 'incomplete', 'half a game': 'incomplete', 'fine': 'complete'}


@pytest.fixture(scope='module')
def ran(tmp_path_factory):
    "(folder, notebook, cells, rows) of a batch in which every cell ends in its own way."
    d = tmp_path_factory.mktemp('batch')
    nb = notebook(d/'ends.ipynb', "how = ''\nout = ''", "print('first')", ENDS, "print('last')", SHOW)
    cells = {how.replace(' ', '-'): dict(how=how) for how in HOW}
    return d/'grid', nb, cells, run_grid(cells, d/'grid', nb, progress=False)


def test_states(ran):
    folder, _, cells, rows = ran
    assert [r['cell'] for r in rows] == [*cells] and {c['how']: r['state'] for c, r in zip(cells.values(), rows)} == HOW
    error = {r['cell']: r['error'] for r in rows}
    assert 'division by zero' in error['fails'] and 'died' in error['killed'] and error['fine'] == ''
    assert 'code cells did not run' in error['exits'] and 'before the game did' in error['half-a-game']
    seen = status(folder)
    assert {r['cell']: (r['state'], r['error']) for r in seen} == {r['cell']: (r['state'], r['error']) for r in rows}
    assert summary(seen) == '1 complete, 2 incomplete, 2 failed of 5 cells'


def test_executed_notebooks_are_kept(ran):
    folder, _, cells, _ = ran
    for name in cells: assert 'first\n' in printed(folder/name/'notebook.ipynb'), name
    assert strict(folder/'grid.json')['cells'] == cells


class Page(HTMLParser):
    "Collects what a page loads and the images without alternative text; asserts that tags are balanced."
    VOID = {'meta', 'img', 'br', 'hr', 'input', 'col', 'wbr'}

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.mute, self.images, self.tables, self.heads = [], [], [], 0, 0, 0
        self.feed(text); self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag in ('script', 'link', 'iframe', 'object', 'embed', 'base'): self.loads.append(tag)
        self.loads += [a[k] for k in ('src', 'srcset', 'poster', 'background') if k in a and not a[k].startswith('data:')]
        self.images += tag == 'img'; self.tables += tag == 'table'; self.heads += tag == 'thead'
        if tag == 'img' and a.get('alt', '') in ('', 'No description has been provided for this image'): self.mute.append(a)
        if tag not in self.VOID: self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID: assert self.open.pop() == tag, self.getpos()


def test_report_is_one_file(ran, monkeypatch):
    folder, _, cells, _ = ran
    run = folder/'fine'/'notebook.ipynb'
    (folder/'results.ipynb').write_bytes(run.read_bytes())
    text = report.report(folder).read_text(encoding='utf-8')
    page = Page(text)
    assert page.loads == [] and page.mute == [] and page.images == 1 and page.tables == page.heads >= 1
    assert not any(s in text for s in ('url(', '@import', '1/0')) and 'prefers-color-scheme: dark' in text and '@media print' in text
    assert all(s in text for s in ('ZeroDivisionError', 'half-a-game: incomplete', '1 complete, 2 incomplete, 2 failed of 5 cells'))
    def full(*args): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, 'replace', full)
    with pytest.raises(OSError): report.report(folder)
    assert (folder/'report.html').read_text(encoding='utf-8') == text and not list(folder.glob('.*.tmp'))


def test_resume_runs_what_is_not_complete(ran):
    folder, nb, cells, _ = ran
    (folder/'begun').unlink(); (folder/'mended').touch()
    (folder/'half-a-game'/'cell.json').unlink()
    rows = run_grid(cells, folder, nb, progress=False)
    assert [r['state'] for r in rows] == ['complete']*5 and {r['cell'] for r in rows if not r['ran']} == {'fine'}
    assert sorted((folder/'begun').read_text().splitlines()) == sorted(set(HOW) - {'fine'})
    assert [r['ran'] for r in run_grid(cells, folder, nb, progress=False)] == [False]*5
    assert summary(status(folder)) == '5 complete of 5 cells'


def test_another_notebook_or_parameter_runs_again(tmp_path):
    "An edit of the notebook's code counts, one of its outputs or text does not."
    nb, go = notebook(tmp_path/'n.ipynb', 'x = 0', 'print(x)'), lambda x: run_grid({'a': dict(x=x)}, tmp_path/'grid', nb, progress=False)[0]['ran']
    assert go(1) and not go(1) and go(2)
    text = nbformat.read(nb, 4)
    text.cells.append(nbformat.v4.new_markdown_cell('more')); nbformat.write(text, nb)
    assert not go(2)
    notebook(nb, 'x = 0', 'print(x + 1)')
    assert go(2) and printed(tmp_path/'grid'/'a'/'notebook.ipynb') == '3\n'


def test_sixteen_at_once(tmp_path):
    "Kernels that start together may race for a port."
    nb = notebook(tmp_path/'n.ipynb', 'x = 0', 'print(x)')
    rows = run_grid({f'c{x}': dict(x=x) for x in range(16)}, tmp_path/'grid', nb, workers=16, progress=False)
    assert [r['error'] for r in rows] == ['']*16
    assert [printed(tmp_path/'grid'/f'c{x}'/'notebook.ipynb') for x in range(16)] == [f'{x}\n' for x in range(16)]


def test_status_while_it_runs(tmp_path):
    nb = notebook(tmp_path/'n.ipynb', 'x = 0', "import time\nfrom pathlib import Path\nwhile not Path('go').exists(): time.sleep(.05)")
    grid, states = tmp_path/'grid', lambda: {r['cell']: r['state'] for r in status(grid)} if (grid/'grid.json').exists() else {}
    work = threading.Thread(target=run_grid, args=({'a': dict(x=1), 'b': dict(x=2)}, grid, nb, 1, False))
    work.start()
    try:
        deadline = time.time() + 30
        while states().get('a') != 'running' and time.time() < deadline: time.sleep(.02)
        assert states() == dict(a='running', b='waiting')
        with pytest.raises(ConfigError, match='another batch is running'): run_grid({'a': dict(x=1)}, grid, nb, progress=False)
    finally:
        (grid/'go').touch()
        work.join()
    assert states() == dict(a='complete', b='complete')
    write_json(grid/'b'/'status.json', dict(fingerprint='', state='running', error=''))         # as a killed batch leaves it
    assert states() == dict(a='complete', b='incomplete')


VALUES = [None, True, False, 0, -3, 2**70, 1e-06, 1e300, -0.5, np.int64(3), np.float32(.25), np.float64(.1), np.bool_(True), '', 'C:\\new\\table\\x41',
          'it\'s "quoted"', 'two\nlines\r\n\ttab', '"""', '\\', '{x} %s $x `y`', 'é 漢 🙂 \x00\x1b', [], [1, [2, [None]]], {}, {'a"\n': {'b': [1e-5]}}, '1e-06', 'null', 'True']
REFUSED = [float('nan'), float('inf'), np.float64('-inf'), (1, 2), {1, 2}, b'x', object(), {1: 2}, [float('nan')], {'a': (1,)}, np.arange(2), 1j]


def test_values_arrive_unchanged(tmp_path):
    "Through a real run, in a folder whose name papermill would take for a format."
    d = tmp_path/"a {b} 'c'"; d.mkdir()
    nb = notebook(d/'n.ipynb', 'x = 0', "print(ascii(x))")
    assert run_notebook(nb, dict(x=VALUES), d/'out.ipynb', cwd=d) == ''
    came, left = eval(printed(d/'out.ipynb')), [v.item() if isinstance(v, np.generic) else v for v in VALUES]
    assert came == left and [type(v) for v in came] == [type(v) for v in left]


@pytest.mark.parametrize('value', REFUSED, ids=repr)
def test_values_refused(tmp_path, no_kernel, value):
    with pytest.raises(ConfigError, match='parameter x'): run_notebook(notebook(tmp_path/'n.ipynb', 'x = 0'), dict(x=value), tmp_path/'out.ipynb')


@pytest.fixture
def no_kernel(monkeypatch):
    def start(*args, **kw): raise AssertionError('a notebook was started')
    monkeypatch.setattr(subprocess, 'run', start)


def test_undeclared_name_starts_nothing(tmp_path, no_kernel):
    nb = notebook(tmp_path/'n.ipynb', 'seed = 0')
    for go in (lambda: run_notebook(nb, dict(sed=1), tmp_path/'out.ipynb'), lambda: run_grid({'a': dict(sed=1)}, tmp_path/'grid', nb, progress=False)):
        with pytest.raises(ConfigError, match="did you mean 'seed'"): go()
    assert not (tmp_path/'grid').exists()


def test_a_failed_cell_is_exit_code_1_and_in_the_report(tmp_path, monkeypatch, capsys):
    "A grid of another notebook that takes the parameters of a game; no pool is built and no results are drawn."
    nb = notebook(tmp_path/'g.ipynb', "pool = task = method = preset = out = ''\npool_seed = seed = 0\noverrides = {}", 'assert seed == 0')
    (tmp_path/'g.toml').write_text("tasks = ['fact']\nmethods = ['sparta']\npools = ['smoke']\nseeds = [0, 1]\nnotebook = 'g.ipynb'")
    monkeypatch.setattr(batch, 'load_pool', lambda *args, **kw: None)
    assert batch.batch(batch.read_grid(tmp_path/'g.toml'), tmp_path/'grid', progress=False) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == str(tmp_path/'grid'/'report.html') and 'smoke-0/fact-sparta-1 failed: AssertionError' in said.err
    page = (tmp_path/'grid'/'report.html').read_text(encoding='utf-8')
    assert 'smoke-0/fact-sparta-1: failed' in page and 'no game of this group is complete' in page and '1 complete, 1 failed of 2 cells' in page
    assert Page(page).loads == []
