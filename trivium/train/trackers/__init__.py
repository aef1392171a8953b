"""Figures of a run by name -> trackers of experiments: TensorBoard, wandb, trackio, MLflow."""
