"""How much faster the engine answers and judges than a plain loop: one prompt per call, every verdict to its 64th token.

    .venv/bin/python benchmarks/one_by_one.py [--pool tiny] [--task sort] [--duels 16]

Both sides run in this process on one thread, with the same models, duels and sampling settings; seconds are CPU seconds. Loading and
training are not part of it. Only the ratio means something on another machine.
"""
import argparse, json, time

import torch

from stackelberg_nb.config import method_config
from stackelberg_nb.duels import combat, draw_duels, judge, judges
from stackelberg_nb.engine import Engine
from stackelberg_nb.judging import parse_score
from stackelberg_nb.pools import Request, load_pool
from stackelberg_nb.reputation import Reputation
from stackelberg_nb.tasks import load_task
from stackelberg_nb.tiny import load_member

VERDICT = 64    # tokens that the reference lets every judge write


def timed(what):
    "(CPU seconds of this process, result) of calling `what`."
    start = time.process_time()
    result = what()
    return time.process_time() - start, result


def plainly(model, tokenizer, prompt, **how):
    "One prompt, one call."
    batch = tokenizer(prompt, return_tensors='pt', return_token_type_ids=False)
    ids = model.generate(**batch, pad_token_id=tokenizer.pad_token_id, **how)
    return tokenizer.decode(ids[0, batch.input_ids.shape[1]:], skip_special_tokens=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--pool', default='tiny'); p.add_argument('--task', default='sort'); p.add_argument('--duels', type=int, default=16)
    a = p.parse_args()
    torch.set_num_threads(1)
    pool, task = load_pool(a.pool), load_task(a.task)
    config = method_config('stackelberg_dpo', pool_overrides=pool.overrides, D=a.duels)
    items, prompts = task.dev, pool.prompts
    duels = draw_duels(0, range(config.D), [n % len(items) for n in range(config.D)], Reputation.from_config(pool.ids, config), config, 0)
    engine, loaded = Engine(pool, config, 0), {m.id: load_member(m) for m in pool.members}
    engine.generate(warmup(pool), config.temperature, config.top_p, 4)

    ours_answer, responses = timed(lambda: combat(engine, duels, items, 0, config))
    ours_judge, verdicts = timed(lambda: judge(engine, duels, responses, items, config))
    sampling = dict(do_sample=True, temperature=config.temperature, top_p=config.top_p, top_k=0, max_new_tokens=config.max_new_tokens)
    loop_answer, _ = timed(lambda: [plainly(*loaded[m], prompts.ask(items[d.instruction].question), **sampling) for d in duels for m in d.fighters])
    asked = [(k, prompts.score(items[duels[r['duel']].instruction].question, r['response'])) for r in responses
             for k in judges(pool.ids, *duels[r['duel']].fighters)]
    whole = dict(do_sample=False, min_new_tokens=VERDICT, max_new_tokens=VERDICT)
    with torch.inference_mode(): loop_judge, texts = timed(lambda: [plainly(*loaded[k], q, **whole) for k, q in asked])
    same = sum(parse_score(t) == v['score'] for t, v in zip(texts, verdicts))
    print(json.dumps(dict(pool=a.pool, task=a.task, duels=a.duels, answers=len(responses), verdicts=len(verdicts), same_scores=same,
                          engine=dict(answer=round(ours_answer, 2), judge=round(ours_judge, 2)), loop=dict(answer=round(loop_answer, 2), judge=round(loop_judge, 2)),
                          times_faster=dict(answer=round(loop_answer/ours_answer, 1), judge=round(loop_judge/ours_judge, 1),
                                            both=round((loop_answer + loop_judge)/(ours_answer + ours_judge), 1))), indent=1))


def warmup(pool):
    "One request per model, so that loading is timed on neither side."
    return [Request(m, pool.prompts.ask('sort dbca'), ('warm',)) for m in pool.ids]


if __name__ == '__main__': main()
