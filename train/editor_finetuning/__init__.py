"""Parts of `train/finetune_ip2p.py`: options, data, features, objective, checkpoints, validation, export."""
