"A batch of throw-away notebooks: what fails, dies or leaves early is told apart, kept, and run again; parameters arrive as they left."
import json, os, signal, subprocess, sys, threading, time
from html.parser import HTMLParser

import nbformat, numpy as np, pytest

from stackelberg_nb import batch, report
from stackelberg_nb.batch import run_grid, run_notebook
from stackelberg_nb.config import ConfigError
from stackelberg_nb.records import Run, versions, write_json
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
    assert error['fails'] == 'ZeroDivisionError: division by zero' and 'died' in error['killed'] and error['fine'] == ''
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
    assert all(s in text for s in ('ZeroDivisionError', 'half-a-game: incomplete: the notebook ended before the game did', '1 complete, 2 incomplete, 2 failed of 5 cells'))
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


@pytest.fixture
def no_kernel(monkeypatch):
    "Starting a notebook would fail the test."
    def start(*args, **kw): raise AssertionError('a notebook was started')
    monkeypatch.setattr(subprocess, 'run', start)


@pytest.fixture
def papermill(no_kernel, monkeypatch):
    "Stands for papermill: papermill(do) calls `do(job, out)` for every notebook, whose result is the error."
    def put(do): monkeypatch.setattr(batch, '_papermill', lambda path, job, out, cwd=None, kernel=None: do(job, out))
    put(lambda job, out: '')
    return put


def test_another_notebook_or_parameter_runs_again(tmp_path, papermill):
    "An edit of the notebook's code counts, one of its outputs or text does not."
    nb, go = notebook(tmp_path/'n.ipynb', 'x = 0', 'print(x)'), lambda x: run_grid({'a': dict(x=x)}, tmp_path/'grid', nb, progress=False)[0]['ran']
    assert go(1) and not go(1) and go(2)
    text = nbformat.read(nb, 4)
    text.cells.append(nbformat.v4.new_markdown_cell('more')); nbformat.write(text, nb)
    assert not go(2)
    notebook(nb, 'x = 0', 'print(x + 1)')
    assert go(2) and not go(2)


def game(folder, done=True, seed=0, **package):
    "A game as `play` leaves it."
    write_json(folder/'cell.json', dict(seed=seed, config=dict(T=1), versions=dict(versions(), **package)))
    if done: write_json(folder/'summary.json', dict(selected=dict(model='m', iteration=1, test=.5)))
    return ''


def test_only_what_the_game_depends_on_replays_it(tmp_path, papermill, monkeypatch):
    "After an edit of a figure the page is drawn again beside its game; after one of the game, the old game is moved aside."
    found, nb, grid = [], notebook(tmp_path/'n.ipynb', 'seed = 0', 'import stackelberg_nb.figures'), tmp_path/'grid'
    def go():
        found.clear()
        return run_grid({'a': dict(seed=0)}, grid, nb, progress=False)[0]['ran']
    def play(job, out):
        found.append(Run(out.parent).complete)
        return '' if found[-1] else game(out.parent)
    papermill(play)
    assert go() and found == [False] and not go() and found == []
    page = batch.sources
    monkeypatch.setattr(batch, 'sources', lambda modules: page(modules) + 'x'*('figures' in modules))
    assert go() and found == [True] and not (grid/'.old').exists()
    new = dict(versions(), package='another')
    monkeypatch.setattr(batch, 'versions', lambda: new)
    assert go() and found == [False] and len(list((grid/'.old').iterdir())) == 1


def test_failed_page_of_a_finished_game(tmp_path, papermill):
    "The batch, status and the next batch agree; a game that failed and was finished by hand is complete."
    nb, grid, go = notebook(tmp_path/'n.ipynb', 'seed = 0'), tmp_path/'grid', lambda: run_grid({'a': dict(seed=0)}, tmp_path/'grid', nb, progress=False)[0]
    state = lambda: [(r['state'], r['error']) for r in status(grid)]
    papermill(lambda job, out: game(out.parent) or 'ValueError: no figure')
    assert go()['state'] == 'failed' and state() == [('failed', 'ValueError: no figure')]
    papermill(lambda job, out: '')
    assert go()['ran'] and state() == [('complete', '')]
    (grid/'a'/'summary.json').unlink()
    papermill(lambda job, out: game(out.parent, done=False) or 'RuntimeError: no memory')
    assert go()['state'] == 'failed' and state() == [('failed', 'RuntimeError: no memory')]
    game(grid/'a')
    assert state() == [('complete', '')]


def test_a_broken_record_stops_nothing_else(tmp_path, papermill):
    nb, cells = notebook(tmp_path/'n.ipynb', 'seed = 0'), dict(a=dict(seed=0), b=dict(seed=1))
    run_grid(cells, tmp_path/'grid', nb, progress=False)
    (tmp_path/'grid'/'a'/'cell.json').write_text('{')
    (tmp_path/'grid'/'b'/'status.json').unlink()
    rows = run_grid(cells, tmp_path/'grid', nb, workers=1, progress=False)
    assert [r['state'] for r in rows] == ['failed', 'complete'] and rows[0]['error'].startswith('JSONDecodeError') and rows[1]['ran']


def test_results_go_with_their_games(tmp_path, papermill):
    "A page of numbers does not outlive the games it was computed from."
    games = ['a', 'b']
    write_json(tmp_path/'grid.json', dict(name='g', notebook='n.ipynb', groups={'': ['a'], 'two': ['b']}, cells=dict(a={}, b={}), grid={}))
    for g in games: (tmp_path/g).mkdir(); game(tmp_path/g)
    papermill(lambda job, out: notebook(out, '1') and '')
    assert batch.results(tmp_path) == [] and {p.name for p in tmp_path.glob('results*')} == {'results.ipynb', 'results-two.ipynb'}
    (tmp_path/'b'/'summary.json').unlink()
    assert batch.results(tmp_path) == [] and {p.name for p in tmp_path.glob('results*')} == {'results.ipynb'}
    page = report.report(tmp_path).read_text(encoding='utf-8')
    assert 'no game of this group is complete' in page and 'Results are incomplete: 1 of 1 code cells did not run' in page


def test_status_while_it_runs(tmp_path, papermill):
    nb, gate = notebook(tmp_path/'n.ipynb', 'x = 0'), threading.Event()
    papermill(lambda job, out: '' if gate.wait(30) else 'the test never opened the gate')
    grid, states = tmp_path/'grid', lambda: {r['cell']: r['state'] for r in status(grid)} if (grid/'grid.json').exists() else {}
    work = threading.Thread(target=run_grid, args=({'a': dict(x=1), 'b': dict(x=2)}, grid, nb, 1, False))
    work.start()
    try:
        deadline = time.time() + 30
        while states().get('a') != 'running' and time.time() < deadline: time.sleep(.02)
        assert states() == dict(a='running', b='waiting')
        with pytest.raises(ConfigError, match='another batch is running'): run_grid({'a': dict(x=1)}, grid, nb, progress=False)
    finally:
        gate.set()
        work.join()
    assert states() == dict(a='complete', b='complete')
    write_json(grid/'b'/'status.json', dict(fingerprint='', state='running', error=''))         # as a killed batch leaves it
    assert states() == dict(a='complete', b='incomplete')


def test_interrupted(tmp_path):
    "Ctrl-C ends the kernel too, starts nothing more and leaves what the next batch goes on with."
    nb = notebook(tmp_path/'n.ipynb', 'x = 0', "import os, time\nfrom pathlib import Path\nPath('.pid').write_text(str(os.getpid()))\nos.rename('.pid', 'pid')\ntime.sleep(60)")
    hears = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"        # also where tests run in a background job, which ignores it
    go = hears + "from stackelberg_nb.batch import run_grid\nrun_grid({'a': dict(x=1), 'b': dict(x=2)}, sys.argv[1], sys.argv[2], workers=1, progress=False)"
    grid, began = tmp_path/'grid', time.time()
    work = subprocess.Popen([sys.executable, '-c', go, grid, nb], start_new_session=True, stderr=subprocess.PIPE, text=True)
    while not (grid/'pid').exists() and work.poll() is None and time.time() < began + 40: time.sleep(.05)
    kernel = int((grid/'pid').read_text())
    os.killpg(work.pid, signal.SIGINT)
    said = work.communicate(timeout=40)[1]
    assert work.returncode and said.rstrip().endswith('KeyboardInterrupt') and time.time() < began + 55
    assert [(r['state'], r['error']) for r in status(grid)] == [('incomplete', 'interrupted'), ('waiting', '')]
    with pytest.raises(ProcessLookupError): os.kill(kernel, 0)
    assert strict(grid/'a'/'notebook.ipynb')['cells']


VALUES = [None, True, False, 0, -3, 2**70, 1e-06, 1e300, -0.5, np.int64(3), np.float32(.25), np.float64(.1), np.bool_(True), '', 'C:\\new\\table\\x41',
          'it\'s "quoted"', 'two\nlines\r\n\ttab', '"""', '\\', '{x} %s $x `y`', 'é 漢 🙂 \x00\x1b', [], [1, [2, [None]]], {}, {'a"\n': {'b': [1e-5]}}, '1e-06', 'null', 'True', -0.0]
REFUSED = [float('nan'), float('inf'), np.float64('-inf'), (1, 2), {1, 2}, b'x', object(), {1: 2}, [float('nan')], {'a': (1,)}, np.arange(2), 1j, '\ud83d', {'\ud83d': 1}]


def test_sixteen_at_once_and_values_arrive_unchanged(tmp_path):
    "Kernels that start together may race for a port. The folder's name is one that papermill would take for a format."
    d = tmp_path/"a {b} 'c'"; d.mkdir()
    nb = notebook(d/'n.ipynb', 'x = y = 0', 'print(ascii((x, y)))')
    rows = run_grid({f'c{y}': dict(x=VALUES, y=y) for y in range(16)}, d/'grid', nb, workers=16, progress=False)
    assert [r['error'] for r in rows] == ['']*16
    left = [v.item() if isinstance(v, np.generic) else v for v in VALUES]
    for y in range(16): assert printed(d/'grid'/f'c{y}'/'notebook.ipynb') == ascii((left, y)) + '\n'


@pytest.mark.parametrize('value', REFUSED, ids=ascii)
def test_values_refused(tmp_path, no_kernel, value):
    with pytest.raises(ConfigError, match='parameter x'): run_notebook(notebook(tmp_path/'n.ipynb', 'x = 0'), dict(x=value), tmp_path/'out.ipynb')


def test_undeclared_name_starts_nothing(tmp_path, no_kernel):
    nb = notebook(tmp_path/'n.ipynb', 'seed = 0')
    for go in (lambda: run_notebook(nb, dict(sed=1), tmp_path/'out.ipynb'), lambda: run_grid({'a': dict(sed=1)}, tmp_path/'grid', nb, progress=False)):
        with pytest.raises(ConfigError, match="did you mean 'seed'"): go()
    assert not (tmp_path/'grid').exists()


def test_a_failed_cell_is_exit_code_1_and_in_the_report(tmp_path, papermill, monkeypatch, capsys):
    "A grid of another notebook that takes the parameters of a game; no pool is built and no results are drawn."
    notebook(tmp_path/'g.ipynb', "pool = task = method = preset = out = ''\npool_seed = seed = 0\noverrides = {}")
    papermill(lambda job, out: 'AssertionError' if job['seed'] else '')
    (tmp_path/'g.toml').write_text("tasks = ['fact']\nmethods = ['sparta']\npools = ['smoke']\nseeds = [0, 1]\nnotebook = 'g.ipynb'")
    monkeypatch.setattr(batch, 'load_pool', lambda *args, **kw: None)
    assert batch.batch(batch.read_grid(tmp_path/'g.toml'), tmp_path/'grid', progress=False) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == str(tmp_path/'grid'/'report.html') and 'smoke-0/fact-sparta-1 failed: AssertionError' in said.err
    page = (tmp_path/'grid'/'report.html').read_text(encoding='utf-8')
    assert 'smoke-0/fact-sparta-1: failed' in page and 'no game of this group is complete' in page and '1 complete, 1 failed of 2 cells' in page
    assert Page(page).loads == []
