"""Train on a table whose column `hospital` names the clients."""

import fedbolic as fb

table = fb.data.TableFile("patients.csv", target="outcome", client="hospital")
data = fb.data.Partitioned(table, fb.data.ByColumn())
print(fb.report.report(fb.run.run(fb.methods.FedAvg(rounds=2), data, name="patients")))
