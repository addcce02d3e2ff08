"""Train an agent to shop: demonstrations, behaviour cloning, PPO, and a report on products never trained on.

    accelerate launch recipes/ppo_webshop.py
    accelerate launch recipes/ppo_webshop.py --data_dir DATA --model_name_or_path MODEL --use_peft
    accelerate launch recipes/ppo_webshop.py --env_id my_pkg:MyEnv-v0

Without an argument: the embedded shop and the small packaged model, on two CPU cores in minutes. Defaults are in
ppo_webshop.yaml beside this file (or --config FILE); flags override them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, get_peft_config

from trl_agent import AgentPPOConfig, AgentPPOTrainer
from trl_agent.bc_arms import clone_both_ways, cloning_config
from trl_agent.checkpoint import FINAL, claim_output_dir
from trl_agent.experiment import Experiment, ExperimentArguments, parse_recipe
from trl_agent.extra_rewards import ActionErrorPenalty
from trl_agent.play import PlayOptions
from trl_agent.report import table, write_report


def main() -> None:
    arguments, ppo, model_args = parse_recipe(
        Path(__file__), (ExperimentArguments, AgentPPOConfig, ModelConfig)
    )
    say = print if PartialState().is_main_process else lambda *_: None
    if PartialState().is_main_process:
        claim_output_dir(
            ppo.output_dir, resume=ppo.resume_from_checkpoint or False, overwrite=ppo.overwrite_output_dir
        )
    run = Experiment(arguments, PlayOptions.of(ppo), model_args, ppo.max_updates * ppo.episodes_per_update)
    ppo.use_system_prompt = run.options.use_system_prompt
    say(f"writing to {run.output_dir}")

    with run.phase("random"):
        results = {"random": run.random_baseline()}
    peft_config = get_peft_config(model_args)
    cloned = None
    if run.bc_epochs:
        with run.phase("cloning"):
            sft = cloning_config(ppo, run.bc_epochs, arguments.bc_learning_rate)
            policy, cloned = clone_both_ways(run, sft, resume=bool(ppo.resume_from_checkpoint))
        peft_config = None  # the clone has the adapter already
    else:
        policy, _ = run.load_model()
    with run.phase("test"):
        results["bc"] = run.evaluate(policy, "bc")
    if cloned:
        cloned.arms[cloned.best].test = results["bc"]["greedy"].to_dict()

    trainer = AgentPPOTrainer(
        ppo,
        processing_class=run.tokenizer,
        model=policy,
        env_id=arguments.env_id,
        env_kwargs=run.env_kwargs("train"),
        eval_env_kwargs=run.env_kwargs("dev"),
        peft_config=peft_config,
        offline_trajectories=run.offline_trajectories() if ppo.bc_coef else None,
        reward_funcs=[ActionErrorPenalty(arguments.error_penalty)] if arguments.error_penalty else None,
    )
    with run.phase("ppo"):
        trainer.train()
    with run.phase("test"):
        results["ppo"] = run.evaluate(trainer.actor.policy, "ppo")

    if PartialState().is_main_process:
        extra = {"cloning": asdict(cloned)} if cloned else {}
        report = write_report(
            run.output_dir,
            results,
            seconds=run.seconds,
            seed=ppo.seed,
            cost=trainer.ledger.summary(),
            extra=extra,
        )
        say(table(report))
        say(
            f"\n{run.output_dir}/report.json, curve.png, trajectories/; the agent is in {run.output_dir}/{FINAL}"
        )


if __name__ == "__main__":
    main()
