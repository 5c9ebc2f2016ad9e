"""A small hierarchy, and ways to write it."""

CATS = {("lion", "cat"), ("cat", "mammal"), ("lion", "mammal")}
LINES = sorted(CATS)

OBO = """format-version: 1.2
import: http://127.0.0.1:9/never.obo

[Term]
id: F:1
name: mammal

[Term]
id: F:2
name: cat
is_a: F:1 ! mammal

[Term]
id: F:3
name: lion
is_a: F:2 ! cat

[Term]
id: F:4
name: dragon
is_obsolete: true

[Term]
id: F:5
name: stone
"""

SKOS = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix f: <http://example.org/> .
<http://example.org/F:1> a skos:Concept ; skos:narrower <http://example.org/F:2> .
<http://example.org/F:2> a skos:Concept ; skos:broader <http://example.org/F:1> .
<http://example.org/F:3> a skos:Concept ; skos:broader <http://example.org/F:2> .
<http://example.org/F:5> a skos:Concept ; skos:prefLabel "stone"@en .
"""


def pairs_of(hierarchy):
    return {(hierarchy.names[u], hierarchy.names[v]) for u, v in hierarchy.pairs.tolist()}
