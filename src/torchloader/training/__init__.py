"""What a training program uses: sessions, models, datasets, checkpoints and traces."""
