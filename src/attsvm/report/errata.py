"""What does not hold as stated in the papers, their code or their summaries, each with a command that shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """One statement that does not hold.

    Attributes
    ----------
    title : str
    where : str
        The source: "v1" is version 1 of arXiv 2308.16898, "code" the official code.
    printed, holds : str
        What is stated there; what is true instead.
    command : str
        Shows it.
    """

    title: str
    where: str
    printed: str
    holds: str
    command: str


ERRATA: tuple[Erratum, ...] = ()
