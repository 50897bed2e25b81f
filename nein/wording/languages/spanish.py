"""Spanish. A number in brackets says which of its `sources` has the rule.

concord       A negative word behind the verb takes "no" before it: "no hay ningún perro" [1] [2].
ningún        "ninguno" loses its -o before a masculine noun, and agrees in gender; singular [2].
ni ... ni     Behind the verb with "no" before it [2].
no todos      "no" before the quantifier denies it [2].
que no        "no" before the verb of the relative clause denies that clause alone [2].
del           "de" and "el" are one word [2].
agreement     Adjectives agree in gender and number, also as predicates and behind the article without a
              noun; those in -e or a consonant, "rosa" and "naranja" in number only [2].
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.wording.languages.base import Language, Named


@dataclass(frozen=True)
class _Noun:
    gender: str
    one: str
    many: str

    @property
    def a(self) -> str:
        return f"{'una' if self.gender == 'f' else 'un'} {self.one}"

    @property
    def none(self) -> str:
        return f"{'ninguna' if self.gender == 'f' else 'ningún'} {self.one}"


_NOUNS = {
    "airplane": _Noun("m", "avión", "aviones"), "apple": _Noun("f", "manzana", "manzanas"),
    "banana": _Noun("m", "plátano", "plátanos"), "bench": _Noun("m", "banco", "bancos"),
    "bicycle": _Noun("f", "bicicleta", "bicicletas"), "bird": _Noun("m", "pájaro", "pájaros"),
    "boat": _Noun("m", "barco", "barcos"), "book": _Noun("m", "libro", "libros"),
    "bottle": _Noun("f", "botella", "botellas"), "bus": _Noun("m", "autobús", "autobuses"),
    "cake": _Noun("m", "pastel", "pasteles"), "car": _Noun("m", "coche", "coches"),
    "cat": _Noun("m", "gato", "gatos"), "chair": _Noun("f", "silla", "sillas"),
    "cup": _Noun("f", "taza", "tazas"), "dog": _Noun("m", "perro", "perros"),
    "kite": _Noun("f", "cometa", "cometas"), "pizza": _Noun("f", "pizza", "pizzas"),
    "sheep": _Noun("f", "oveja", "ovejas"), "teddy bear": _Noun("m", "oso de peluche", "osos de peluche"),
    "umbrella": _Noun("m", "paraguas", "paraguas"),
}  # fmt: skip
#: Masculine and feminine, singular, then plural.
_COLOURS = {
    "red": ("rojo", "roja", "rojos", "rojas"), "orange": ("naranja", "naranja", "naranjas", "naranjas"),
    "yellow": ("amarillo", "amarilla", "amarillos", "amarillas"),
    "green": ("verde", "verde", "verdes", "verdes"), "blue": ("azul", "azul", "azules", "azules"),
    "purple": ("morado", "morada", "morados", "moradas"), "pink": ("rosa", "rosa", "rosas", "rosas"),
    "brown": ("marrón", "marrón", "marrones", "marrones"), "black": ("negro", "negra", "negros", "negras"),
    "grey": ("gris", "gris", "grises", "grises"), "white": ("blanco", "blanca", "blancos", "blancas"),
    "tan": ("beige", "beige", "beiges", "beiges"),
}  # fmt: skip


def sentences(named: Named) -> list[tuple[str, str]]:
    a, b = _NOUNS[named.thing], _NOUNS[named.other]
    form = int(a.gender == "f")
    is_so, are_so = _COLOURS[named.colour][form], _COLOURS[named.colour][form + 2]
    is_second = _COLOURS[named.second][form]
    the, of_the, all_, others = (("el", "del", "todos los", "otros"), ("la", "de la", "todas las", "otras"))[
        form
    ]
    return [
        (f"No hay {a.none} excepto {the} {is_so}.", f"Hay {others} {a.many} además {of_the} {is_so}."),
        (f"No hay ni {a.a} ni {b.a}.", f"Hay {b.a}, pero no hay {a.none}."),
        (f"Hay {a.a}, pero no hay {b.none}.", f"Hay {b.a}, pero no hay {a.none}."),
        (f"No {all_} {a.many} son {are_so}.", f"{all_} {a.many} son {are_so}."),
        (f"Antes había {a.a}.", f"Todavía hay {a.a}."),
        (f"Hay {a.a} que no es {is_second}.", f"Hay {a.a} que es {is_second}."),
    ]


SPANISH = Language(
    "es", "Spanish", sentences, "Lo siguiente no es cierto: {}",
    (
        "Haspelmath, Negative Indefinite Pronouns and Predicate Negation, WALS Online, chapter 115 "
        "(https://wals.info/chapter/115)",
        "RAE and ASALE, Nueva gramática de la lengua española (2009): chapter 48, La negación; the adjective",
    ),
)  # fmt: skip
