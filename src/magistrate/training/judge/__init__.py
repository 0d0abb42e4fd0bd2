"""Trains a judge model: a small instruct model, tuned by LoRA on labels or on chats."""
