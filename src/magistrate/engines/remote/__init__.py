"""Shared by the engines that ask a model server over HTTP."""
