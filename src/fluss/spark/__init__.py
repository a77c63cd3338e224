# SPDX-License-Identifier: Apache-2.0
"""The pipeline on Spark: read, write and stream Fluss tables with PySpark. Needs `pip install fluss-python[spark]`."""
