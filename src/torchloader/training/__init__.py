"""What a training program uses: models, checkpoints, traces, its place in the job."""
