"""Readers of metered inference and of epochs to a target, on a few lines in each publisher's format."""

import gzip
import json
from pathlib import Path

import pytest

from predictor.models.corpus import ml_energy, ml_energy_diffusion, ml_energy_v2, wilkins, zeus_targets
from predictor.models.corpus.schema import conform

V2 = (
    "Model,GPU,Energy/video (J),Batch latency (s),Batch size,Denoising steps,Frames,task,"
    "meta_denoising_params,meta_resolution,Energy/image (J),TP,PP,Energy/req (J),Avg TPOT (s),"
    "Token tput (tok/s),Avg Output Tokens,Max BS (reqs)"
)


def _served(tp: int, pp: int) -> str:
    return (
        f"m,NVIDIA A100-SXM4-40GB,,,,,,llm_text_generation/chat,,,,{tp}.0,{pp}.0,200.0,0.1,600.0,400.0,64.0"
    )


def test_served_requests_become_watts_of_a_board_and_joules_of_a_token(tmp_path: Path) -> None:
    (tmp_path / "configurations.csv").write_text("\n".join([V2, _served(2, 1), _served(8, 2)]) + "\n")
    found = ml_energy_v2.read(tmp_path)
    assert found.counts == {"available": 2, "used": 1, "pipelined": 1}
    values = dict(conform(found.frame, ml_energy_v2.SOURCE).select("quantity", "value").iter_rows())
    # 200 J in 400 tokens at 600 tokens a second, on two boards.
    assert values == {"energy": pytest.approx(0.5), "average_power": pytest.approx(150.0)}


def test_prompts_of_images_are_as_long_as_a_model_cuts_them(tmp_path: Path) -> None:
    columns = (
        "task,model_id,gpu_model,num_gpus,max_num_seqs,data_parallel,expert_parallel,weight_precision,"
        "avg_output_len,avg_power_watts,energy_per_token_joules,output_throughput_tokens_per_sec"
    )
    runs = [
        (task, model)
        for task in ("image-chat", "lm-arena-chat")
        for model in ("google/gemma-3-12b-it", "Qwen/Qwen3-VL-8B-Instruct")
    ]
    lines = [f"{task},{model},H100,1,64,1,1,bf16,400.0,500.0,0.5,1000.0" for task, model in runs]
    (tmp_path / "configurations.csv").write_text("\n".join([columns, *lines]) + "\n")
    frame = conform(ml_energy.read(tmp_path), ml_energy.SOURCE)
    found = {
        (facts["task"], row["subject"]): facts["prompt_tokens"]
        for row in frame.iter_rows(named=True)
        for facts in [json.loads(row["configuration"])]
    }
    gemma, qwen = runs[0][1], runs[1][1]
    # Gemma 3 resizes an image to 256 tokens; Qwen cuts it by its resolution.
    assert found["image", gemma] - found["chat", gemma] == 256
    assert found["image", qwen] == 780
    assert found["chat", qwen] == found["chat", gemma] == 130


def test_drawn_images_keep_their_size_and_steps(tmp_path: Path) -> None:
    line = "d,NVIDIA H100 80GB HBM3,,2.0,4.0,25.0,,diffusion/text-to-image,0.9,768x512,300.0,,,,,,,"
    (tmp_path / "configurations.csv").write_text(f"{V2}\n{_served(1, 1)}\n{line}\n")
    frame = conform(ml_energy_v2.read(tmp_path).frame, ml_energy_v2.SOURCE)
    drawn = [row for row in frame.iter_rows(named=True) if row["subject"] == "d"]
    assert {row["quantity"]: row["value"] for row in drawn} == {"energy": 300.0, "latency": 2.0}
    facts = json.loads(drawn[0]["configuration"])
    assert (facts["width"], facts["height"], facts["denoising_steps"], facts["frames"]) == (768, 512, 25, 1)


def test_v3_draws_on_several_boards(tmp_path: Path) -> None:
    (tmp_path / "configurations.csv").write_text(
        "model_id,gpu_model,num_gpus,batch_size,inference_steps,num_frames,image_height,image_width,video_height,"
        "video_width,ring_degree,ulysses_degree,activated_params_billions,batch_latency_s,energy_per_image_joules,"
        "energy_per_video_joules\n"
        "v,H100,4,2.0,50.0,49.0,,,480.0,720.0,4.0,1.0,2.0,80.0,,90000.0\n"
        "served,H100,1,,,,,,,,,,8.0,,,\n"
    )
    frame = conform(ml_energy_diffusion.read(tmp_path), ml_energy_diffusion.SOURCE)
    assert dict(frame.select("quantity", "value").iter_rows()) == {"energy": 90000.0, "latency": 80.0}
    assert json.loads(frame["configuration"][0])["devices"] == 4


def test_runs_of_generate_are_medians_in_joules(tmp_path: Path) -> None:
    head = (
        "file,Phase,Runtime (s),CPU Energy (J),GPU Energy (J),Output Token Limit,Number of Input Tokens,"
        "Iteration,Model,Number of GPUs,Batch Size,System,Number of Output Tokens,duplicate_of_other_file"
    )

    def line(iteration: int, joules: float, copied: str = "False", phase: str = "start-inference-8") -> str:
        return (
            f"a.csv,{phase},2.0,20.0,{joules},32.0,16.0,{iteration},Falcon (7B),1,32,Palmetto-V100,,{copied}"
        )

    lines = [line(0, 900.0), line(1, 300.0), line(2, 320.0), line(3, 310.0), line(1, 300.0, "True")]
    # Thousandths of joules under the heading of joules, and the loading of the model.
    lines += [line(4, 310000.0), line(5, 300.0, phase="model load")]
    with gzip.open(tmp_path / "all_runs.csv.gz", "wt", encoding="utf-8") as out:
        out.write("\n".join([head, *lines]) + "\n")
    found = wilkins.read(tmp_path)
    frame = conform(found.frame, wilkins.SOURCE)
    assert found.counts["copies"] == 1
    assert found.counts["used"] == 3
    values = {(row["quantity"], row["scope"]): row["value"] for row in frame.iter_rows(named=True)}
    # 32 answers of 32 tokens in two seconds.
    assert values == {
        ("average_power", "gpu_board"): 155.0,
        ("energy", "gpu_board"): 310.0 / 1024,
        ("energy", "host_cpu"): 20.0 / 1024,
    }
    assert json.loads(frame["configuration"][0])["tokens_per_s"] == 512.0
    assert frame["device"][0] == "v100-pcie-16gb"


def test_targets_never_reached_are_counted(tmp_path: Path) -> None:
    (tmp_path / "summary_train.csv").write_text(
        "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n"
        "cifar100,shufflenetv2,1024,adadelta,1e-1,1,0.6,44\n"
        "cifar100,shufflenetv2,4096,adadelta,1e-1,1,0.6,nan\n"
    )
    found = zeus_targets.read(tmp_path)
    assert found.counts == {"available": 2, "used": 1, "never reached": 1}
    assert conform(found.frame, zeus_targets.SOURCE)["value"].to_list() == [44.0]
