"""Translation models, all behind one contract (`regard.translate.models.contract`)."""
