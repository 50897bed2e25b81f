"""NeIn: do image editors understand that something is not there?"""
