"""`nerfacc.estimators`: they decide where to place samples along rays."""
