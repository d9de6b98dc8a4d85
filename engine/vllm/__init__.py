"""The policies inside vLLM, and vLLM in the place of our own engine. Nothing else imports vLLM, and nothing here does
before it is asked to.
"""
