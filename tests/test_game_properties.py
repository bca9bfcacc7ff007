"What must hold for any input: the rules of the game, 00_config to 04_reputation."
import json, math
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from stackelberg_nb.config import ConfigError, METHODS, PRESETS, STRATEGIES, config, method_config, rng
from stackelberg_nb.judging import JUDGE_PROMPT, aggregate, complete_json, duel_scores, judge_prompt, judges, parse_score, winner
from stackelberg_nb.leader import Exp3Leader, LLMLeader, PerModelLeader, UniformLeader, duel_reward, target_gap
from stackelberg_nb.matching import draw_opponent, match_probs, normalized_gaps
from stackelberg_nb.reputation import Reputation

settings.register_profile('game', max_examples=50, deadline=None, derandomize=True, database=None)
settings.load_profile('game')

score = st.floats(1, 10)
unit = st.floats(0, 1)
reputations = st.lists(st.floats(10, 1000), min_size=3, max_size=9)
through_json = lambda state: json.loads(json.dumps(state, allow_nan=False))

# ---- config

@given(st.sampled_from(sorted(METHODS)), st.sampled_from(sorted(PRESETS)), st.integers(1, 99), st.floats(.01, 1), st.floats(1e-6, 1e3))
def test_config_round_trip(method, preset, D, gamma, eta):
    c = method_config(method, preset, D=D, gamma=gamma, eta=eta)
    assert config(**through_json(c.asdict())) == c and c.diff(c) == {}

@given(st.sampled_from(sorted(config().asdict())), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)))
def test_config_takes_a_value_or_says_why(name, value):
    try: c = config(**{name: value}) if name != 'preset' else config(value)
    except ConfigError as e: assert '\n' not in str(e) and str(e)
    else: assert config(**through_json(c.asdict())) == c

@given(st.lists(st.one_of(st.integers(), st.text()), max_size=4), st.lists(st.one_of(st.integers(), st.text()), max_size=4))
def test_random_streams_follow_their_key(a, b):
    assert rng(*a).random() == rng(*a).random()
    assert (rng(*a).random() == rng(*b).random()) == (a == b)

# ---- judging

json_like = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(-20, 20), st.floats(), st.text(max_size=4)),
                         lambda o: st.one_of(st.lists(o, max_size=3), st.dictionaries(st.sampled_from(['score', 'Score', 'a', 'reason']), o, max_size=3)), max_leaves=8)
pieces = st.sampled_from(['{', '}', '"', "'", ':', ' ', '\n', '\\', '[', ']', '<think>', '</think>', '<THINK>', 'score', '"score"', '{"score": 8}', '{"score": 11}', '8', '10', '7.5', '-', '/', '/10', ' out of ', '%', '.', ',',
                          'NaN', 'true', '```json', '```', 'Score: ', '１', '٣', '\ud800', '9'*400])
texts = st.one_of(st.text(), st.lists(pieces, max_size=14).map(''.join), json_like.map(json.dumps), st.tuples(st.text(max_size=5), json_like.map(json.dumps), st.text(max_size=5)).map(''.join))

@settings(max_examples=300)
@given(texts)
def test_any_text_is_a_score_or_none(text):
    s = parse_score(text)
    assert s is None or (type(s) is float and 1 <= s <= 10)
    complete_json(text)

@settings(max_examples=300)
@given(texts)
def test_a_judge_may_stop_at_its_json(text):
    "Where the engine stops, the score is that of the whole answer, unless reasoning ends only after that."
    stop = next((n for n in range(len(text) + 1) if complete_json(text[:n])), None)
    if stop is not None and '</think' not in text[stop - 1:].lower(): assert parse_score(text[:stop]) == parse_score(text)

@given(st.floats(1, 10), texts, texts)
def test_json_score_is_found_behind_prose(s, before, after):
    if '{' not in before and '<think' not in before.lower() and '</think' not in (before + after).lower(): assert parse_score(before + json.dumps({'score': s}) + after) == s

@given(st.text(), st.text())
def test_prompt_holds_both_texts(question, answer):
    head, middle, tail = JUDGE_PROMPT.partition('{instruction}')[0], '\nResponse to be evaluated: ', JUDGE_PROMPT.partition('{response}')[2]
    assert judge_prompt(question, answer) == head + question + middle + answer + tail

@given(st.lists(st.tuples(st.one_of(st.none(), score), st.floats(0, 1e6)), max_size=8), st.floats(1e-3, 1e3))
def test_aggregate_is_a_mean(rows, scale):
    s, w = [o[0] for o in rows], [o[1] for o in rows]
    known, mean = [o for o in s if o is not None], aggregate(s, w)
    assert (mean is None) == (not known)
    if known: assert min(known) <= mean <= max(known) and math.isclose(mean, aggregate(s, [o*scale for o in w]), rel_tol=1e-6)

verdict = st.one_of(st.none(), st.integers(1, 10).map(float))

@given(st.lists(st.tuples(verdict, verdict, st.floats(1, 200)), min_size=1, max_size=7), st.sampled_from(['default', 'default_both', 'exclude']), st.sampled_from(['reputation', 'uniform']))
def test_swapping_the_answers_changes_nothing(rows, unparsable, judge_weights):
    i, j, R = ({k: row[n] for k, row in enumerate(rows)} for n in range(3))
    c = config(unparsable=unparsable, judge_weights=judge_weights)
    (a, b, n), (x, y, n2) = duel_scores(i, j, R, c), duel_scores(j, i, R, c)
    assert (a, b, n) == (y, x, n2)
    if a is not None:
        assert winner(a, b) == -winner(x, y)
        assert duel_reward(a, b, .3) == duel_reward(x, y, .3)

@given(st.lists(st.text(max_size=3), min_size=3, max_size=9, unique=True), st.data())
def test_nobody_judges_itself(models, data):
    i, j = data.draw(st.permutations(models))[:2]
    peers = judges(models, i, j)
    assert len(peers) == len(models) - 2 and not {i, j} & set(peers) and peers == judges(models, j, i)

# ---- leader

@given(score, score, unit)
def test_reward_is_in_the_unit_interval(s_i, s_j, gap):
    assert 0 <= duel_reward(s_i, s_j, gap) <= 1 and duel_reward(s_i, s_j, gap) == duel_reward(s_j, s_i, gap)

@given(st.integers(1, 50), unit, unit, st.data())
def test_target_gap_stays_between_its_ends(T, a, b, data):
    g = target_gap(data.draw(st.integers(0, T - 1)), T, a, b)
    assert min(a, b) - 1e-12 <= g <= max(a, b) + 1e-12

duels = st.lists(st.lists(st.tuples(st.integers(0, 6), unit), max_size=20), max_size=8)

@given(duels, st.floats(.01, 1), st.one_of(st.sampled_from(['1/K', 'gamma/K']), st.floats(1e-3, 100)))
def test_exp3_stays_a_distribution_and_survives_json(rounds, gamma, eta):
    a, b = Exp3Leader(7, gamma, eta), Exp3Leader(7, gamma, eta)
    for rows in rounds: a.update([k for k, _ in rows], [r for _, r in rows])
    assert math.isclose(a.probs.sum(), 1) and a.probs.min() >= gamma/7*(1 - 1e-12) and np.isfinite(a.logw).all()
    b.load_state_dict(through_json(a.state_dict()))
    assert (a.probs == b.probs).all() and (a.draw(50, rng(1)) == b.draw(50, rng(1))).all() and a.state_dict() == b.state_dict()

@given(st.one_of(st.floats().filter(lambda r: not 0 <= r <= 1), st.none(), st.text(max_size=3), st.booleans()), st.lists(unit, max_size=3))
def test_a_bad_reward_is_refused_whole(bad, good):
    for leader in UniformLeader(5), Exp3Leader(5), LLMLeader(5, str), PerModelLeader('ab', lambda: Exp3Leader(5)):
        before = json.dumps(leader.state_dict())
        if isinstance(bad, bool) and good: continue  # numpy reads [True, .5] as numbers
        with pytest.raises(ValueError): leader.update([0]*(len(good) + 1), good + [bad], ['a']*(len(good) + 1))
        assert json.dumps(leader.state_dict()) == before

@given(st.lists(st.one_of(texts, st.lists(st.integers(-3, 9), max_size=9).map(str)), min_size=1, max_size=9), st.integers(1, 6), st.integers(1, 12))
def test_llm_leader_always_draws(answers, K, n):
    said = iter(answers*20)
    leader = LLMLeader(K, lambda prompt: next(said))
    picks = leader.draw(n, rng(0))
    assert len(picks) == n and ((0 <= picks) & (picks < K)).all() and 0 <= leader.fallbacks <= leader.draws == n

# ---- matching

@given(reputations, st.data(), unit, st.sampled_from(STRATEGIES), st.sampled_from(['all', 'nearest']), st.integers(1, 12), st.floats(1e-4, 2), unit)
def test_opponents_are_a_distribution(R, data, gap, strategy, candidates, n_opp, sigma_g, p_rand):
    i = data.draw(st.integers(0, len(R) - 1))
    p = match_probs(R, i, gap, strategy, sigma_g, p_rand, n_opp, candidates)
    assert math.isclose(p.sum(), 1) and (p >= 0).all() and p[i] == 0
    assert draw_opponent(R, i, gap, rng(0), strategy, sigma_g=sigma_g, p_rand=p_rand, n_opp=n_opp, candidates=candidates) != i
    g = normalized_gaps(R, i)
    assert ((0 <= g) & (g <= 1)).all() and (g.max() == 1 or not g.any())

@given(st.lists(st.integers(10, 1000).map(float), min_size=3, max_size=9), st.data(), unit, st.sampled_from(STRATEGIES))
def test_the_order_of_the_pool_does_not_matter(R, data, gap, strategy):
    order = data.draw(st.permutations(range(len(R))))
    i = data.draw(st.integers(0, len(R) - 1))
    p, q = match_probs(R, order[i], gap, strategy), match_probs([R[o] for o in order], i, gap, strategy)
    assert np.allclose(p[order], q)

@pytest.mark.parametrize('strategy', STRATEGIES)
def test_equal_reputations_mean_uniform_opponents(strategy):
    r, m, i = rng('chi-square', strategy), 8, 3
    n = np.bincount([draw_opponent([100.]*m, i, 1., r, strategy) for _ in range(8000)], minlength=m)
    others = np.delete(n, i)
    assert n[i] == 0 and ((others - 8000/7)**2/(8000/7)).sum() < 22.5  # 6 degrees of freedom, once in 1,000

# ---- reputation

duel_list = st.lists(st.tuples(st.permutations(range(4)), score, st.one_of(score, st.none()), st.booleans()), max_size=60)
knobs = st.fixed_dictionaries(dict(decay=st.sampled_from(['step', 'smooth']), std=st.sampled_from(['sample', 'population']), W=st.integers(2, 20), sigma_floor=st.sampled_from([0., .1]), R_0=st.sampled_from([1., 10., 100.])))

@given(duel_list, knobs)
def test_either_listing_of_a_duel_gives_the_same_book(rows, kw):
    a, b = (Reputation('wxyz', R_min=.1, **kw) for _ in range(2))
    for (i, j, *_), s, u, swap in rows:
        i, j, u = 'wxyz'[i], 'wxyz'[j], s if u is None else u
        d = a.update(i, j, s, u)
        assert b.update(*((j, i, u, s) if swap else (i, j, s, u))) == (d[::-1] if swap else d)
    assert a.R == b.R and a.sigma == b.sigma and a.state_dict() == b.state_dict()
    assert all(.1 <= R < math.inf for R in a.R.values()) and sum(a.n.values()) == 2*len(rows)

@given(duel_list, knobs, duel_list)
def test_a_book_survives_json(rows, kw, more):
    a, b = (Reputation(['m0', 'm1', 'm2', 'm3'], R_min=.1, **kw) for _ in range(2))
    def play(book, rows): return [book.update(f'm{i}', f'm{j}', s, s if u is None else u) for (i, j, *_), s, u, _ in rows]
    play(a, rows)
    b.load_state_dict(through_json(a.state_dict()))
    assert a.R == b.R and a.sigma == b.sigma and play(a, more) == play(b, more) and a.state_dict() == b.state_dict()

@given(st.one_of(st.floats().filter(lambda s: not 1 <= s <= 10), st.none(), st.text(max_size=3), st.booleans()), score, st.booleans())
def test_a_bad_score_poisons_nothing(bad, good, first):
    book = Reputation('abc'); book.update('a', 'b', 9., 2.)
    before = book.state_dict()
    with pytest.raises(ConfigError): book.update('a', 'c', *((bad, good) if first else (good, bad)))
    assert book.state_dict() == before
