"""torchvision's ResNet-50 on pictures, SGD with momentum; the outputs stay in a variable."""
import torch
import torchvision

from common import Readings

readings = Readings()
with torch.device("cuda"):
    model = torchvision.models.resnet50()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    readings.read("base")
    pictures, labels = torch.randn(8, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (8,), device="cuda")
    outputs = model(pictures)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    readings.read("forward")
    loss.backward()
    readings.read("backward")
    optimizer.step()
    readings.read("update")
    optimizer.zero_grad()
    del loss, outputs, pictures, labels
    readings.read("zeroed")
