"""`nerfacc.contraction`: maps between space and the unit cube of a grid. The same in 0.2 and 0.3."""

from raymine.compat.nerfacc_v03.contraction import ContractionType as ContractionType
from raymine.compat.nerfacc_v03.contraction import contract as contract
from raymine.compat.nerfacc_v03.contraction import contract_inv as contract_inv
