"""Shared code of the engines that call a model server over HTTP."""
