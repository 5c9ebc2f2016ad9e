"""Train on images in one folder for every class, dealt to three clients."""

import fedbolic as fb

images = fb.data.ImageFolder("pets", size=(32, 32))
data = fb.data.Partitioned(images, fb.data.IID(3))
print(fb.report.report(fb.run.run(fb.methods.FedAvg(rounds=2), data, name="pets")))
