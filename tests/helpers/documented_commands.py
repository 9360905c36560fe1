"""Map each command of the pages to what starts it: a test, or CI before the tests."""

from collections.abc import Mapping

HERE = "tests/docs/test_commands.py::test_a_command_runs_as_it_stands"
CI = "tests/run.sh"
TRAINING = "tests/end_to_end/test_training.py::"
FIRST_HOUR = "tests/docs/test_first_hour.py::"

STARTED_BY: Mapping[str, str] = {
    # the words of a command; … for any more of them
    "bash examples/setup_cpu.sh": CI,
    "source .venv/bin/activate": CI,
    "bash tests/run.sh …": ".ci/run",
    "bash examples/quickstart.sh …": (
        "tests/end_to_end/test_quickstart.py::test_what_it_writes_and_rollout_and_actor_agree"
    ),
    # its training alone is not started; that of quickstart.sh, with the same code, is
    "bash examples/smollm2.sh …": (
        "tests/runs/test_smollm2_without_training.py::test_a_report_writes_its_files"
    ),
    "pip install -e examples/teacher": (
        "examples/teacher/tests/test_teacher_settings.py::test_commands_know_the_installed_package"
    ),
    # a tiny task
    "python examples/teacher/chain_sum_teacher.py …": (
        "examples/teacher/tests/test_chain_sum_teacher.py::test_a_teacher_and_its_responses"
    ),
    # one student
    "python examples/teacher/chain_sum_teacher_kl.py …": (
        "examples/teacher/tests/test_chain_sum_teacher_kl.py::test_a_run_of_one_student"
    ),
    "python tests/helpers/write_paper_index.py": (
        "tests/catalogue/test_paper_index.py::test_the_page_is_what_the_records_say"
    ),
    "pip install .": "tests/test_package.py::test_the_wheel_works_in_a_fresh_environment",
    "bash examples/setup_cpu.sh cpu,ablation": CI,
    "pip-licenses --with-system": (
        "tests/test_licences.py::test_what_users_install_may_be_used_beside_our_licence"
    ),
    "cyclonedx-py environment …": (
        "tests/test_licences.py::test_the_bill_of_materials_has_this_package_and_what_it_needs"
    ),
    # shorter, the same preset on the embedded task
    "python3 -m verl.trainer.main_ppo +algo=grpo data.train_files=… …": (
        "tests/end_to_end/test_iterate.py::test_two_rounds_of_the_example"
    ),
    "python3 -m verl.trainer.main_ppo +algo=grpo +platform=cpu …": (
        "tests/end_to_end/test_iterate.py::test_two_rounds_of_the_example"
    ),
    "python3 -m verl.trainer.main_ppo +algo=dapo data.train_files=… …": (
        "tests/end_to_end/test_cluster_job.py::test_dapo_with_all_its_parts_as_a_job"
    ),
    "python3 -m verl.trainer.main_ppo +algo=gvpo +platform=cpu …": (TRAINING + "test_gvpo_on_two_ranks"),
    "RAY_ADDRESS=HEAD:6379 python3 -m verl.trainer.main_ppo +algo=gvpo +platform=cpu …": (
        TRAINING + "test_the_first_rollout_again_on_two_nodes"
    ),
    # fewer examples
    "FUZZ_EXAMPLES=20000 python -m pytest tests/fuzz": CI,
    "grpo-verl-ext prepare chain_sum --seed 1": "tests/helpers/verl_runs.py::chain_sum",
    "python examples/tasks/reasoning_gym_data.py --task countdown …": (
        "tests/examples/test_reasoning_gym.py::test_prepare_gives_the_same_bytes_whatever_the_hashes"
    ),
    # a tiny file of its kind; with --all the package's
    "python examples/tasks/smollm2_model.py": (
        "tests/examples/test_smollm2_model.py::test_it_is_found_again_and_another_file_is_said"
    ),
    "grpo-verl-ext iterate run examples/iterate_chain_sum.yaml": (
        "tests/end_to_end/test_iterate.py::test_two_rounds_of_the_example"
    ),
    "grpo-verl-ext iterate plan examples/iterate_chain_sum.yaml": HERE,
    "grpo-verl-ext ablate plan examples/ablations/gvpo_best_chain_sum.yaml": HERE,
    "grpo-verl-ext ablate run GRID.yaml --ray-address http://HOST:8265 --jobs 4": (
        "tests/end_to_end/test_cluster_job.py::test_dapo_with_all_its_parts_as_a_job"
    ),
    "grpo-verl-ext ablate report outputs/ablations/gvpo_best_chain_sum": HERE,
    "grpo-verl-ext ablate report examples/ablations/results/…": (
        "tests/ablation/test_kept_results.py::test_the_report_is_made_anew_and_is_the_same"
    ),
    "python examples/anatomy.py rollouts …": "tests/examples/test_anatomy.py::test_a_dump_is_drawn",
    "grpo-verl-ext doctor": "tests/doctor/test_doctor.py::test_a_ray_worker_is_asked_for_real",
    "grpo-verl-ext doctor +algo=gvpo …": "tests/doctor/test_doctor.py::test_words_for_people",
    "grpo-verl-ext doctor +algo=NAME …": "tests/doctor/test_doctor.py::test_words_for_people",
    "grpo-verl-ext doctor --fix +algo=gvpo …": (
        "tests/doctor/test_correction.py::test_the_printed_command_can_be_pasted"
    ),
    # shorter, the same preset on the embedded task
    "grpo-verl-ext train gvpo data.train_files=… …": (
        "tests/end_to_end/test_gvpo_responses_and_anchors.py::test_the_anchor_is_a_reference_that_follows_the_policy"
    ),
    # composed and checked with the files of the page
    "grpo-verl-ext train gvpo +platform=cpu …": (FIRST_HOUR + "test_the_trainings_are_accepted"),
    "python my_data.py": (FIRST_HOUR + "test_the_rows_and_their_rewards"),
    "grpo-verl-ext ablate run two_losses.yaml": (FIRST_HOUR + "test_the_comparison_is_planned"),
    "grpo-verl-ext ablate report outputs/two_losses": (
        "tests/ablation/test_kept_results.py::test_the_report_is_made_anew_and_is_the_same"
    ),
    "grpo-verl-ext train gvpo data.train_files=… … --dry-run": (
        "tests/launch/test_train.py::test_a_dry_run_prints_values_and_findings_and_starts_nothing"
    ),
    "grpo-verl-ext show gvpo …": (
        "tests/launch/test_values.py::test_the_command_prints_both_as_a_table_and_as_json"
    ),
    "GRPO_VERL_EXT_CHECK=1 bash run.sh +algo@_global_=gvpo": (
        "tests/plugin/test_check_by_running.py::test_a_script_with_an_array_and_a_loop"
    ),
    "grpo-verl-ext invariance": (
        "tests/proof/test_invariance.py::test_the_command_passes_when_ours_are_invariant"
    ),
    "VERL_USE_EXTERNAL_MODULES=my_losses grpo-verl-ext invariance …": (
        "tests/plugin/losses/test_own_loss.py::test_verl_loads_it_and_its_invariance_is_measured"
    ),
    "python examples/quickstart.py --algo NAME": (
        "tests/end_to_end/test_quickstart.py::test_what_it_writes_and_rollout_and_actor_agree"
    ),
}
"""A command → the test, fixture or script that starts it, or a smaller one of its kind."""
