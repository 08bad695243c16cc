"""``python -m scorer.openapi`` prints the document."""

import sys

from scorer.openapi import encoded_document

sys.stdout.buffer.write(encoded_document())
