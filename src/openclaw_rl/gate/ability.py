"""General ability by reading alone: small questions, the beginning of an answer, and two ways for it to end.

Nothing is generated. A question is right when the right end is likelier, per token, than the wrong one; so a version
that has learned to be brief, or to write lists, is not marked down for its style, and one that has unlearned facts is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiz:
    """A question, and an answer to it that ends rightly or wrongly."""

    question: str
    right: str
    wrong: str

    @property
    def answers(self) -> tuple[str, str]:
        """Both answers, the right one first."""
        return self.right, self.wrong


def margin(scores: Mapping[str, float], quiz: Quiz) -> float:
    """How much likelier the right answer is than the wrong one, in nats per token; negative when it is not."""
    return scores[quiz.right] - scores[quiz.wrong]


_TABLE = """
What is the capital of France? | The capital of France is | Paris | Madrid
What is the capital of Japan? | The capital of Japan is | Tokyo | Moscow
What is the largest planet? | The largest planet in our solar system is | Jupiter | Mars
How many days has a week? | A week has | seven days | ninety days
How many legs has a spider? | A spider has | eight legs | three legs
What is two plus two? | Two plus two is | four | nine
What color is the sky? | On a clear day the sky is | blue | brown
What color is grass? | Fresh grass is | green | purple
What is the opposite of hot? | The opposite of hot is | cold | tall
What is the opposite of up? | The opposite of up is | down | green
What do bees make? | Bees make | honey | bread
What is frozen water? | Frozen water is called | ice | sand
Which season follows winter? | After winter comes | spring | music
Which day follows Monday? | The day after Monday is | Tuesday | March
Who wrote Romeo and Juliet? | Romeo and Juliet was written by William | Shakespeare | Wordsworth
Which organ pumps blood? | Blood is pumped by the | heart | nose
With what do we see? | We see with our | eyes | ears
Where do fish live? | Fish live in | water | trees
What do cows give us? | Cows give us | milk | coffee
What is the chemical formula of water? | The chemical formula of water is H | 2O | 9X
"""


def quizzes() -> Iterator[Quiz]:
    """The shipped questions, in a fixed order."""
    for line in _TABLE.strip().splitlines():
        question, begin, right, wrong = (part.strip() for part in line.split("|"))
        gap = "" if begin.endswith(" H") else " "
        yield Quiz(question=question, right=f"{begin}{gap}{right}", wrong=f"{begin}{gap}{wrong}")


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two answers begin with alike; at least one is left of each."""
    alike = 0
    for one, two in zip(first[:-1], second[:-1], strict=False):
        if one != two:
            break
        alike += 1
    return alike
