"""The benchmark NeIn: do image editors understand that something should be absent?"""
