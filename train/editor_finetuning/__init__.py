"""Parts of `train/finetune_ip2p.py`: options, data, drawn edits, batches, model with loss and export."""
