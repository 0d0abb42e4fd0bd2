"""Training a model to judge with: a small instruct model, tuned by LoRA on labels or on chats."""
