"""What somebody who means harm can send to the real process, and what must come of it: an answer or a refusal, and nothing else."""
