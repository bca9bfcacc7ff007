"""Play the game given as JSON in argv[1] and write to argv[2] when each phase began, counted in forward passes; with argv[3],
die by SIGKILL at that forward pass. Every model embeds its tokens once per forward pass, so that is where passes are counted."""
import json, os, signal, sys
from dataclasses import replace

import torch

from stackelberg_nb import game, tasks

torch.set_num_threads(1)


def short():
    "The task `fact` with few questions: what is tested is the game."
    t = tasks.load_task('fact')
    return replace(t, name='short', dev=t.dev[:40], test=t.test[:12])


tasks.register_task('short', short)
passes, phases = 0, []
embed, phase = torch.nn.Embedding.forward, game.Bar.phase


def counted(self, ids):
    global passes
    passes += 1
    if passes == fatal: os.kill(os.getpid(), signal.SIGKILL)
    return embed(self, ids)


def noted(self, name, total):
    phases.append((self.head, name, passes))
    return phase(self, name, total)


fatal = int(sys.argv[3]) if len(sys.argv) > 3 else None
torch.nn.Embedding.forward, game.Bar.phase = counted, noted
game.play(**json.loads(sys.argv[1]), progress=False)
with open(sys.argv[2], 'w') as f: json.dump(phases + [(None, 'end', passes)], f)
