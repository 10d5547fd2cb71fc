"""Plans and verdicts for people: terminal tables, plan text, self-contained HTML."""

from kernelgen.report.plan_data import FusionView, KernelView, PlanView, read_plan

__all__ = ["FusionView", "KernelView", "PlanView", "read_plan"]
