"""Train a hyperbolic head in Lightning, here to find the largest of eight features."""

import lightning
import torch

import fedbolic as fb


class Network(lightning.LightningModule):
    def configure_model(self):
        space = fb.manifolds.Lorentz(c=1.0)
        self.head = torch.nn.Sequential(fb.nn.ToManifold(space), fb.nn.MLR(space, 8, 8))

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self.head(batch), batch.argmax(dim=1))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


lightning.Trainer(max_steps=9).fit(Network(), torch.utils.data.DataLoader(torch.randn(500, 8), 50))
