"Seven architectures, a shared base and several iterations: what the notebooks on the engine and on training cannot carry."
import math
from dataclasses import replace

import pytest, torch
from transformers import Phi3Config, Phi3ForCausalLM
from transformers.utils import logging

from stackelberg_nb.config import config
from stackelberg_nb.engine import Engine, lora_targets
from stackelberg_nb.pools import Member, Pool, Request
from stackelberg_nb.tiny import MEMBERS, PROMPTS, SMOKE, build_tokenizer, make_model
from stackelberg_nb.training import pair_ids, train_dpo, train_grpo

RECIPES = [*MEMBERS, *(r for r in SMOKE if r.arch == 'gpt2')]
ARCHS = [r.id for r in RECIPES]
CONFIG = config(lora_r=4, lora_alpha=8, lora_targets='all-linear', max_new_tokens=6, max_completion=6, judge_max_tokens=6,
                dpo_lr=3e-3, dpo_batch=4, dpo_micro_batch=4, grpo_lr=3e-3, G=4, grpo_batch=8)
ASK = [PROMPTS.ask('count ' + 'x'*n) for n in range(1, 7)]
PAIRS = [dict(prompt=p, chosen=str(n), rejected=str(n + 3)) for n, p in enumerate(ASK)]
DUELS = [dict(prompt=p, duel=d, fighter=d % 2) for d, p in enumerate(ASK[:3])]


def digits(rows): return [sum(c.isdigit() for c in r['text'])/6 for r in rows]


@pytest.fixture(scope='module')
def pool(tmp_path_factory):
    "The architectures of the tiny and the smoke pool, smaller and with random weights, and a second member on the first one's base."
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    at, tokenizer = tmp_path_factory.mktemp('models'), build_tokenizer()
    for r in RECIPES:
        make_model(replace(r, hidden=32, layers=2, inner=64), tokenizer).save_pretrained(at/r.id)
        tokenizer.save_pretrained(at/r.id)
    members = [Member(i, str(at/i)) for i in ARCHS] + [Member('twin', str(at/ARCHS[0]))]
    return Pool('random', members, PROMPTS)


@pytest.mark.parametrize('model', ARCHS)
def test_three_iterations(pool, model, tmp_path):
    "The loss starts at ln 2 in each iteration, and what was saved is what was trained, to the last bit."
    engine, logits = Engine(pool, CONFIG), []
    for t in range(3):
        result = train_dpo(engine, model, PAIRS, CONFIG, seed=t)
        assert abs(result.initial_loss - math.log(2)) < 1e-5 and result.steps == 2 and engine.commit(model)
        logits.append(engine.logits(model, ASK[0]))
        engine.save_adapter(model, tmp_path/str(t))
    assert not torch.equal(logits[0], logits[1]) and not torch.equal(logits[1], logits[2])
    fresh = Engine(pool, CONFIG)
    for t in (2, 0):
        fresh.load_adapter(model, tmp_path/str(t))
        assert torch.equal(fresh.logits(model, ASK[0]), logits[t])
    assert {f.name for f in (tmp_path/'0').iterdir()} == {'adapter_config.json', 'adapter_model.safetensors'}


@pytest.mark.parametrize('model', ARCHS)
def test_grpo_trains_on_its_own_answers(pool, model):
    "The trainer checks that its log-probabilities are the sampler's, with prompts of different lengths padded on the left."
    engine = Engine(pool, CONFIG)
    result, rows = train_grpo(engine, model, DUELS, digits, CONFIG, key=(0,))
    assert result.steps == 2 and len(rows) == 12 and all(math.isfinite(l) for l in result.losses)


@pytest.mark.parametrize('model', ARCHS)
def test_one_text_whatever_the_batch(pool, model):
    "Sampled one by one, in small batches or all at once; greedy as the library's own generation."
    asks = [Request(model, ASK[k % 6], ('t', k)) for k in range(7)]
    engine = Engine(pool, CONFIG)
    answers = engine.generate(asks)
    assert [a for r in asks for a in engine.generate([r])] == answers
    assert Engine(pool, CONFIG, token_budget=100).generate(asks[::-1])[::-1] == answers
    lm, own = engine.base(model)[0].lm, engine.sample(asks[:6], 0, 1, 6, 'test')
    for s in own:
        theirs = lm.generate(torch.tensor([s.prompt_ids]), max_new_tokens=6, do_sample=False)[0, len(s.prompt_ids):].tolist()
        assert s.ids == theirs


@pytest.mark.parametrize('model', ARCHS)
def test_pairs_begin_with_the_prompt_that_generation_saw(pool, model):
    engine = Engine(pool, CONFIG)
    sampled = engine.sample([Request(model, p['prompt'], (n,)) for n, p in enumerate(PAIRS)], .7, .9, 3, 'test')
    tokenizer = engine.base(model)[0].tokenizer
    for row, s, p in zip(pair_ids(engine, model, PAIRS, 99), sampled, PAIRS):
        assert row['prompt_ids'] == s.prompt_ids and row['prompt_ids'].count(tokenizer.bos_token_id) == 1
        assert tokenizer.decode(row['chosen_ids']) == p['chosen'] + tokenizer.eos_token
        assert tokenizer.pad_token_id not in row['chosen_ids'] + row['rejected_ids'] and tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_papers_targets_by_architecture():
    "Query, key, value and output projections under each architecture's names; the rest stays untouched."
    tokenizer, paper = build_tokenizer(), config().lora_targets
    found = {r.arch: lora_targets(make_model(replace(r, hidden=32, layers=1, inner=64), tokenizer), paper) for r in RECIPES}
    phi = Phi3ForCausalLM(Phi3Config(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0))
    assert found['gpt2'] == ['attn.c_attn', 'attn.c_proj'] and found['gpt_neox'] == ['attention.dense', 'attention.query_key_value']
    assert lora_targets(phi, paper) == ['o_proj', 'self_attn.qkv_proj']
    assert all(found[a] == sorted(paper) for a in ('llama', 'qwen3', 'cohere', 'mistral', 'gemma'))


def test_members_on_one_base(pool):
    "Two members that share a base, trained in turn, end as each would alone."
    def trained(order):
        engine = Engine(pool, CONFIG)
        for t in range(2):
            for m in order: train_dpo(engine, m, PAIRS[t:], CONFIG, seed=t)
            for m in order: engine.commit(m)
        return {m: engine.logits(m, ASK[1]) for m in order}
    a, b = ARCHS[0], 'twin'
    both, swapped = trained([a, b]), trained([b, a])
    alone = trained([a]) | trained([b])
    for m in (a, b): assert torch.equal(both[m], swapped[m]) and torch.equal(both[m], alone[m])
    assert not torch.equal(both[a], both[b])


def test_grpo_is_judged_by_the_models_of_the_iterations_start(pool):
    "A fighter trained earlier in the iteration still judges with the adapter it had, on its own and on a shared base."
    engine = Engine(pool, CONFIG)
    asked = []
    def peers(rows):
        asks = [Request(m, PROMPTS.score(r['prompt'], r['text'])) for r in rows for m in ('twin', 'gpt2')]
        asked.extend(zip(asks, engine.judge(asks)))
        return digits(rows)
    names = {m: engine.checkpoint(m) for m in ('twin', 'gpt2')}
    for m in ('twin', 'gpt2', ARCHS[0]): train_grpo(engine, m, DUELS, peers, CONFIG)
    assert names == {m: engine.checkpoint(m) for m in names}
    untouched = Engine(pool, CONFIG)
    assert untouched.judge([r for r, _ in asked]) == [a for _, a in asked]
    assert all(engine.commit(m) for m in ('twin', 'gpt2', ARCHS[0]))
    assert all(engine.checkpoint(m) != names[m] for m in names)
