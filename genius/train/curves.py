"""Plot of a training log: loss and validation recall of every stage."""

from pathlib import Path

from genius.train.loop import read_log


def draw_curves(log: Path, out: Path) -> None:
    """Write a plot with one column per stage: the loss above, the validation recall below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_log(log)
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    figure, axes = pyplot.subplots(2, len(stages), figsize=(4.5 * len(stages), 6), squeeze=False, sharex="col")
    for column, stage in enumerate(stages):
        mine = [line for line in lines if line["stage"] == stage]
        loss, score = axes[0][column], axes[1][column]
        loss.plot([line["step"] for line in mine], [line["loss"] for line in mine], linewidth=0.7, color="tab:blue")
        validated = [line for line in mine if "val_score" in line]
        steps = [line["step"] for line in validated]
        for name in [key for key in (validated[0] if validated else {}) if "_task" in key]:
            score.plot(steps, [line[name] for line in validated], linewidth=0.8, label=name.removeprefix("val_"))
        score.plot(steps, [line["val_score"] for line in validated], linewidth=2.2, color="black", label="mean")
        loss.set_title(stage)
        loss.set_ylabel("loss")
        score.set_ylabel("validation Recall@5, %")
        score.set_xlabel("step")
        score.legend(fontsize=5, ncol=2)
        for axis in (loss, score):
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, dpi=150)
    pyplot.close(figure)
