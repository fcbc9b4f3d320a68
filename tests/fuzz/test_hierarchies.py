"""Every reader of hierarchies under mutated files, and options of any type."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from hace.formats import FORMATS, parse_hierarchy, read_hierarchy
from tests.fuzz.driver import CHUNKS, WORDS, fuzz, mutate_bytes, mutate_text, mutate_tree, odd_value

OWN = {
    "format": "hace-hierarchy/1",
    "rooted": True,
    "level_names": ["group", "kind"],
    "leaves": ["husky", "tabby"],
    "nodes": [
        {"id": "pet", "name": "pet", "parents": []},
        {"id": "dog", "name": "Dog", "parents": ["pet"]},
        {"id": "husky", "name": "Husky", "parents": ["dog"]},
        {"id": "tabby", "name": "Tabby", "parents": ["pet"]},
    ],
}
NESTED = {
    "name": "pet",
    "children": [{"name": "dog", "children": [{"id": 7, "name": "husky"}]}, {"name": "cat"}],
}
LINKED = [{"id": 1, "name": "pet", "child_ids": [2, 3]}, {"id": 2, "child_ids": []}, {"id": 3, "parent": 1}]
COCO = {
    "categories": [
        {"id": 1, "name": "person", "supercategory": "person"},
        {"id": 3, "name": "car", "supercategory": "x"},
    ]
}
IMAGES = {
    "LabelName": "/m/0",
    "Subcategory": [{"LabelName": "/m/1", "Part": [{"LabelName": "/m/2"}]}, {"LabelName": "/m/2"}],
}
GRAPH = {
    "graphs": [
        {
            "nodes": [
                {"id": "http://purl.obolibrary.org/obo/A_1", "type": "CLASS", "lbl": "a"},
                {"id": "A:2", "type": "CLASS", "lbl": "b", "meta": {"synonyms": [{"val": "bee"}]}},
                {
                    "id": "A:3",
                    "type": "CLASS",
                    "meta": {"deprecated": True, "basicPropertyValues": [{"pred": "x", "val": "y"}]},
                },
            ],
            "edges": [
                {"sub": "A:2", "pred": "is_a", "obj": "A:1"},
                {"sub": "A:2", "pred": "is_a", "obj": "B:1"},
            ],
        }
    ]
}
NAMES = {"pet": {"dog": ["husky", {"hound": ["beagle"]}], "cat": {}}, "plant": None}
CODES = {
    "more": False,
    "results": [{"code": "01", "title": "Pets"}, {"code": "0101", "title": "Dogs", "n": 1.5}],
}
TEXTS = {
    "topics": [
        "parent: None child: pet child-description: Pet\nparent: pet child: dog\nparent: pet child: cat\n"
    ],
    "label-studio": [
        "<View><Taxonomy name='t' toName='i'><Choice value='pet'><Choice value='dog'/></Choice></Taxonomy></View>"
    ],
    "xml": ['<a><b code="1"><name>x</name><c id="2" text="y"/></b></a>'],
    "claml": [
        '<?xml version="1.0"?>\n<!DOCTYPE ClaML SYSTEM "ClaML.dtd">\n<ClaML><Class code="I"><SubClass code="A00"/>'
        '<Rubric kind="preferred"><Label xml:lang="en">Infections</Label></Rubric></Class><Class code="A00">'
        '<SuperClass code="I"/><Rubric kind="preferred"><Label>Cholera &amp; <Term>x</Term></Label></Rubric></Class></ClaML>'
    ],
    "entries": [
        "synonyms:en: a, b\n\nen: Pets\nfr: Animaux\n\n< en:Pets\nen: Dogs, Hounds\nx:en: 1\n\n<fr:animaux\nen: Cats\n"
    ],
    "csv": [
        "id,parent,name,label\npet,,Pet,\ndog,pet,Dog,0\ncat,pet,Cat,1\n",
        "parent,child\npet,dog\npet,cat\ndog,husky\n",
        "pet,dog\npet,cat\ndog,husky\n",
        'group,kind,"n"\ndog,husky,0\ndog,"bea""gle",1\ncat,,2\n',
        "taxonID,parentNameUsageID,acceptedNameUsageID,taxonomicStatus,taxonRank,scientificName,vernacularName\n"
        'f,,,accepted,family,Felidae,cats\np,f,,accepted,species,"Panthera leo (L., 1758)",lion\n'
        "q,,p,synonym,species,Felis leo,\n",
        "ID,parentID,status,rank,scientificName,authorship\nk,,,kingdom,Animalia,\ns,k,synonym,kingdom,Metazoa,Haeckel\n",
        "taxon_id,ancestry,rank_level,rank,name,active\n1,,70,kingdom,Animalia,true\n2,1,60,phylum,Chordata,true\n"
        "3,1/2,50,class,Aves,true\n",
        "Class ID,Preferred Label,Synonyms,Obsolete,Parents\nu:1,A,,FALSE,\nu:2,B,bee|hive,FALSE,u:1|u:9\nu:3,C,,TRUE,u:1\n",
        'A,"Farms"\n01,"Crops"\n01.1,"Cereals"\nB,"Mines"\n05,"Coal"\n',
        "Section code,Section title,Division code,Division title\nA,Farms,01,Crops\nB,Mines,05,Coal\n",
        "Major,Minor,Detailed,\n11-0000,,,Managers\n,11-1000,,Executives\n,,11-1011,Chiefs\n",
        "Code,Title,Key\n,Infections,1\n,- Gut,2\n1A00,- - Cholera,3\n",
        "HTS Number,Indent,Description\n0101,0,Horses\n,1,Other:\n0102,1,Other:\n",
        "Level1/Code,Level2/Code,Name (en-GB)\nm:1,,arts\n,m:2,opera\n",
        "id,category\n1,Pets\n2,Pets > Dogs\n3,Pets > Cats > Tabby\n",
        "Node ID,Path\n1,Home\n2,Home/Hobs\n",
        "code,text\n00-XX,General\n00-01,Teaching\n00Axx,Topics\n00A05,Mathematics\n",
        "code,title\nI,Infections\nA00-A09,Gut\nA00,Cholera\nII,Neoplasms\nC00,Lip\n",
        "conceptUri,broaderUri\nu:1,u:0\nu:2,u:1\n",
        "Code,Title\n31-33,Factories\n311,Food\n32,x\n322,Paper\n",
        "kingdom,class,family,genus,species\nAnimalia,Aves,,Corvus,Corvus corax\nAnimalia,,Felidae,Panthera,leo\n",
    ],
    "rdf": [
        "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n@prefix : <http://e.org/> .\n"
        ':pet a skos:Concept .\n:dog a skos:Concept ; skos:broader :pet ; skos:prefLabel "dog"@en .\n',
        "Ontology(\nDeclaration(Class(pet))\nDeclaration(Class(dog))\nSubClassOf(dog pet)\n)\n",
    ],
    "xlsx": [  # the text of a sheet
        "Classification\t\t\nCode\tTitle\tLevel\n1\tPets\t1\n11\tDogs\t2\n",
    ],
    "tsv": [
        "id\tparent\nroot\t\na\troot\nb\troot\n",
        "a\tb\na\tc\n",
        "taxonID\tparentNameUsageID\ttaxonRank\tscientificName\n1\t\tfamily\tFelidae\n2\t1\tgenus\tPanthera Oken, 1816\n",
    ],
    "paths": [
        "# version\n1 - A\n2 - A > B\n3 - A > B > C\n4 - D\n",
        "gid://x/a : A\ngid://x/b   : A > B\n",
        "A > B\nA > C > D\n",
        "A;B;C\nA;D\n",
        "RS_1\td__Bacteria;p__X;g__Y;s__Y z\nGB_2\td__Bacteria;p__X;g__;s__\n",
    ],
    "ncbi": ["1\t|\t1\t|\tno rank\t|\n2\t|\t1\t|\tfamily\t|\n3\t|\t2\t|\tgenus\t|\n4\t|\t9\t|\tspecies\t|\n"],
    "speciesnet": [
        "00000000-0000-4000-8000-000000000001;mammalia;carnivora;felidae;panthera;leo;lion\n"
        "00000000-0000-4000-8000-000000000002;mammalia;;;;;mammal\n00000000-0000-4000-8000-000000000003;;;;;;blank\n"
    ],
    "yaml": [
        "- id: a\n  name: A\n  children: [b, c]\n- id: b\n- id: c\n  children:\n",
        "name: a\nchildren:\n- name: b\n- name: c\n",
    ],
    "edges": ["pet dog\npet cat\ndog husky\n", "house pet\tdog\nhouse pet\tcat\n"],
    "indented": ["pet\n  dog\n    husky\n  cat\n", "pet\n-- dog\n---- husky\n-- cat\n", "a\n\tb\n\t\tc\n"],
    "newick": ["((husky:1.5,'bea''gle')dog[note],cat)pet;\n(a,b)c;"],
    "obo": [
        'format-version: 1.2\n\n[Term]\nid: A:1\nname: pet\n\n[Term]\nid: A:2\nis_a: A:1 {x="y"} ! pet\n'
        "\n[Term]\nid: A:3\nis_a: A:1\nis_obsolete: true\n\n[Typedef]\nid: part_of\n"
    ],
    "json": [
        json.dumps(document)
        for document in (OWN, NESTED, [NESTED, NESTED], LINKED, COCO, IMAGES, GRAPH, NAMES, CODES)
    ],
}
SPECIAL = {
    "newick": ["(", ")", ",", ";", ":", "[", "]", "'"],
    "obo": ["[Term]\n", "[", "is_a: ", "id: ", "\\", "!", "is_obsolete: true\n", "{"],
    "json": ['"children"', '"id"', "null", "NaN", "[", "{", '"\\ud800"', "1" * 5000],
    "indented": ["  ", "\t", "-- ", "    " * 50],
    "paths": [" > ", ";", " - ", "s__", "\t", "#"],
    "ncbi": ["|", "\t|\t", "1"],
    "csv": ["synonym", "http://", "accepted", ",,,"],
}
OPTIONS = {
    "csv": {
        "columns": ["group", "kind"],
        "label": "n",
        "ids": "level",
        "header": False,
        "order": "child parent",
    },
    "edges": {"order": "child-parent"},
    "indented": {"ids": "path"},
    "newick": {"ids": "path", "internal_labels": False},
    "json": {
        "ids": "path",
        "children": "child_ids",
        "parents": "parent",
        "parts": True,
        "relations": "part_of",
    },
    "obo": {"prefix": "A:", "isolated": "drop", "relations": "part_of"},
    "paths": {"separator": ";"},
}
SHARED = {
    "leaves": ["husky", "tabby"],
    "names": {"pet": "Pet"},
    "level_names": ["a", "b"],
    "rooted": True,
    "flat": True,
}


def test_every_reader_is_fuzzed() -> None:
    assert set(TEXTS) == {name for name, kind in FORMATS.items() if kind.parse}


def case(random: Random, name: str) -> tuple[str | bytes, dict]:
    text = random.choice(TEXTS[name])
    words = [*WORDS, *SPECIAL.get(name, [])]
    made: str | bytes = mutate_text(random, text, words=words)
    if name == "json" and random.random() < 0.5:
        made = json.dumps(mutate_tree(random, json.loads(text)))
    elif random.random() < 0.3:
        encoding = random.choice(("utf-8", "utf-8", "utf-16", "latin-1"))
        pieces = [*CHUNKS, *(word.encode("utf-8", "replace") for word in words)]
        made = mutate_bytes(random, text.encode(encoding, "replace"), pieces=pieces)
    options = {**OPTIONS.get(name, {}), **SHARED, "flat": True}
    chosen = {key: options[key] for key in options if random.random() < 0.15}
    if random.random() < 0.2 and chosen:
        chosen[random.choice(list(chosen))] = odd_value(random)
    return made, chosen


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_hierarchies(name: str) -> None:
    fuzz(lambda random: case(random, name), 550, lambda made: parse_hierarchy(made[0], name, **made[1]))


FILES = {
    "nabirds": {
        "hierarchy.txt": "1 0\n2 0\n3 1\n",
        "classes.txt": "0 Birds\n1 Ducks, Geese\n2 Owl\n3 Teal (Male)\n",
    },
    "fgvc": {
        "variants.txt": "737-400\nA320\n",
        "families.txt": "737\nA320\n",
        "images_variant_test.txt": "01 737-400\n02 A320\n03 A320\n",
        "images_family_test.txt": "01 737\n02 A320\n",
        "images_manufacturer_test.txt": "01 Boeing\n02 Airbus Industries\n",
    },
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_folders_of_data_sets(name: str, tmp_path: Path) -> None:
    def broken(random: Random) -> dict[str, bytes]:
        files = {file: text.encode() for file, text in FILES[name].items()}
        file = random.choice(list(files))
        files[file] = mutate_bytes(random, files[file])
        return files

    def read(files: dict[str, bytes]) -> None:
        for file, data in files.items():
            (tmp_path / file).write_bytes(data)
        read_hierarchy(tmp_path)

    fuzz(broken, 100, read)
