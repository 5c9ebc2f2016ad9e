"""Take the trained model out of a run."""

import torch

import fedbolic as fb

digits = fb.data.Partitioned(fb.data.Digits(), fb.data.IID(3))
folder = fb.run.run(fb.methods.FedAvg(rounds=1), digits, name="digits")
model = fb.load(folder)  # a torch.nn.Module in evaluation mode
print(model(torch.zeros(5, 1, 8, 8)).argmax(1))
fb.run.export(folder, "digits.pt2")  # or .onnx, .safetensors
