"""`nerfacc.cuda`: the one function of it that is served. The same in 0.2 and 0.3."""

from raymine.compat.nerfacc_v03.cuda import ContractionTypeGetter as ContractionTypeGetter
