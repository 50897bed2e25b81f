"""English, German, French, Spanish and Russian."""

from __future__ import annotations

from typing import ClassVar

from nein.wording.languages.base import COLOURS, THINGS, Language
from nein.wording.nouns import plural, with_article

Forms = tuple[str, ...]
Pairs = list[tuple[str, str]]
_CONCORD = (
    "Haspelmath, Negative Indefinite Pronouns and Predicate Negation, WALS Online, chapter 115 "
    "(https://wals.info/chapter/115)"
)
_SYMMETRY = (
    "Miestamo, Symmetric and Asymmetric Standard Negation, WALS Online, chapter 113 "
    "(https://wals.info/chapter/113)"
)


class English(Language):
    # "no" denies the noun phrase, "neither" and "nor" each of two; "not" before "all" denies the
    # quantifier, and not what is said of each thing; "used to" is a state that has ended [1].
    code, title, untrue = "en", "English", "The following is not true: {}"
    sources = (
        "Huddleston and Pullum, The Cambridge Grammar of the English Language (2002), chapter 9, Negation",
    )
    nouns: ClassVar = {thing: thing for thing in THINGS}
    colours: ClassVar = {colour: colour for colour in COLOURS}

    def sentences(self, a: str, b: str, colour: str, second: str) -> Pairs:
        one, other, many = with_article(a), with_article(b), plural(a)
        return [
            (
                f"There are no {many} except the {colour} one.",
                f"There are {many} other than the {colour} one.",
            ),
            (f"There is neither {one} nor {other}.", f"There is {other} but no {a}."),
            (f"There is {one} but not {other}.", f"There is {other} but not {one}."),
            (f"Not all {many} are {colour}.", f"All {many} are {colour}."),
            (f"There used to be {one}.", f"There is still {one}."),
            (f"There is {one} that is not {second}.", f"There is {one} that is {second}."),
        ]


class German(Language):
    # "kein", declined as "ein" is, denies where a noun phrase would have "ein" or no article; "nicht"
    # denies all else, and nothing else of the clause changes [2]. "Es gibt" governs the accusative, "außer"
    # the dative; "Teddybär" has -en in every case but the nominative singular [1]. Behind the article
    # adjectives have the weak ending, -en in the dative; as predicates none [1]. "der, die, das" agree with
    # the noun in gender, and are subjects here; the verb stands last [1].
    code, title, untrue = "de", "German", "Folgendes stimmt nicht: {}"
    sources = (
        "Durrell, Hammer's German Grammar and Usage (6th edition, 2017): nouns, determiners, adjectives, "
        "negation",
        _SYMMETRY,
    )
    #: Gender, nominative, plural; accusative where it is not the nominative.
    nouns: ClassVar = {
        "airplane": ("n", "Flugzeug", "Flugzeuge"), "apple": ("m", "Apfel", "Äpfel"),
        "banana": ("f", "Banane", "Bananen"), "bench": ("f", "Bank", "Bänke"),
        "bicycle": ("n", "Fahrrad", "Fahrräder"), "bird": ("m", "Vogel", "Vögel"),
        "boat": ("n", "Boot", "Boote"), "book": ("n", "Buch", "Bücher"),
        "bottle": ("f", "Flasche", "Flaschen"), "bus": ("m", "Bus", "Busse"),
        "cake": ("f", "Torte", "Torten"), "car": ("n", "Auto", "Autos"), "cat": ("f", "Katze", "Katzen"),
        "chair": ("m", "Stuhl", "Stühle"), "cup": ("f", "Tasse", "Tassen"), "dog": ("m", "Hund", "Hunde"),
        "kite": ("m", "Drachen", "Drachen"), "pizza": ("f", "Pizza", "Pizzas"),
        "sheep": ("n", "Schaf", "Schafe"), "teddy bear": ("m", "Teddybär", "Teddybären", "Teddybären"),
        "umbrella": ("m", "Regenschirm", "Regenschirme"),
    }  # fmt: skip
    #: As a predicate, and weak in the dative. "rosa", "orange" and "beige" are declined with "-farben" only.
    colours: ClassVar = {
        "red": ("rot", "roten"), "orange": ("orange", "orangefarbenen"), "yellow": ("gelb", "gelben"),
        "green": ("grün", "grünen"), "blue": ("blau", "blauen"), "purple": ("violett", "violetten"),
        "pink": ("rosa", "rosafarbenen"), "brown": ("braun", "braunen"), "black": ("schwarz", "schwarzen"),
        "grey": ("grau", "grauen"), "white": ("weiß", "weißen"), "tan": ("beige", "beigefarbenen"),
    }  # fmt: skip

    def sentences(self, a: Forms, b: Forms, colour: Forms, second: Forms) -> Pairs:
        an = {"m": "einen", "f": "eine", "n": "ein"}
        one, other = (f"{an[noun[0]]} {noun[3 if len(noun) > 3 else 1]}" for noun in (a, b))
        that, to_the = {"m": ("der", "dem"), "f": ("die", "der"), "n": ("das", "dem")}[a[0]]
        many, but_one, so = a[2], f"{to_the} {colour[1]}", second[0]
        return [
            (f"Es gibt keine {many} außer {but_one}.", f"Es gibt außer {but_one} noch andere {many}."),
            (f"Es gibt weder {one} noch {other}.", f"Es gibt {other}, aber k{one}."),
            (f"Es gibt {one}, aber k{other}.", f"Es gibt {other}, aber k{one}."),
            (f"Nicht alle {many} sind {colour[0]}.", f"Alle {many} sind {colour[0]}."),
            (f"Früher gab es {one}.", f"Es gibt immer noch {one}."),
            (f"Es gibt {one}, {that} nicht {so} ist.", f"Es gibt {one}, {that} {so} ist."),
        ]


class French(Language):
    # "ne" before the verb and "pas" behind it [1]; "pas" alone in a clause without a verb [3]. An
    # indefinite article becomes "de" under negation [2], "d'" before a vowel. "aucun" and "ni" are in the
    # place of "pas"; "aucun" agrees in gender and is singular, and behind "ni ... ni" there is no article.
    # "ne sont pas toutes" denies the quantifier that floats behind it; "Toutes ... ne sont pas" could be
    # read both ways [3].
    code, title, untrue = "fr", "French", "Ce qui suit n'est pas vrai : {}"
    sources = (
        "Dryer, Negative Morphemes, WALS Online, chapter 112 (https://wals.info/chapter/112)",
        _SYMMETRY,
        "Grevisse and Goosse, Le bon usage (16th edition, 2016): negation, agreement of the adjective",
    )
    #: Gender, singular, plural.
    nouns: ClassVar = {
        "airplane": ("m", "avion", "avions"), "apple": ("f", "pomme", "pommes"),
        "banana": ("f", "banane", "bananes"), "bench": ("m", "banc", "bancs"),
        "bicycle": ("m", "vélo", "vélos"), "bird": ("m", "oiseau", "oiseaux"),
        "boat": ("m", "bateau", "bateaux"), "book": ("m", "livre", "livres"),
        "bottle": ("f", "bouteille", "bouteilles"), "bus": ("m", "autobus", "autobus"),
        "cake": ("m", "gâteau", "gâteaux"), "car": ("f", "voiture", "voitures"),
        "cat": ("m", "chat", "chats"), "chair": ("f", "chaise", "chaises"), "cup": ("f", "tasse", "tasses"),
        "dog": ("m", "chien", "chiens"), "kite": ("m", "cerf-volant", "cerfs-volants"),
        "pizza": ("f", "pizza", "pizzas"), "sheep": ("m", "mouton", "moutons"),
        "teddy bear": ("m", "ours en peluche", "ours en peluche"),
        "umbrella": ("m", "parapluie", "parapluies"),
    }  # fmt: skip
    #: Masculine and feminine, singular, then plural; "orange" and "marron", names of fruits, do not change.
    colours: ClassVar = {
        "red": ("rouge", "rouge", "rouges", "rouges"), "orange": ("orange",) * 4,
        "yellow": ("jaune", "jaune", "jaunes", "jaunes"), "green": ("vert", "verte", "verts", "vertes"),
        "blue": ("bleu", "bleue", "bleus", "bleues"),
        "purple": ("violet", "violette", "violets", "violettes"), "pink": ("rose", "rose", "roses", "roses"),
        "brown": ("marron",) * 4, "black": ("noir", "noire", "noirs", "noires"),
        "grey": ("gris", "grise", "gris", "grises"), "white": ("blanc", "blanche", "blancs", "blanches"),
        "tan": ("beige", "beige", "beiges", "beiges"),
    }  # fmt: skip

    def sentences(self, a: Forms, b: Forms, colour: Forms, second: Forms) -> Pairs:
        one, other, many, form = a[1], b[1], a[2], int(a[0] == "f")
        a_one, an_other = (f"{'une' if noun[0] == 'f' else 'un'} {noun[1]}" for noun in (a, b))
        of_one, of_other = (f"d'{noun}" if noun[0] in "aeiou" else f"de {noun}" for noun in (one, other))
        none, that, all_ = (("aucun", "celui", "tous"), ("aucune", "celle", "toutes"))[form]
        but_one, are_so, so = f"{that} qui est {colour[form]}", colour[form + 2], second[form]
        return [
            (f"Il n'y a {none} {one}, sauf {but_one}.", f"Il y a d'autres {many} que {but_one}."),
            (f"Il n'y a ni {one} ni {other}.", f"Il y a {an_other}, mais pas {of_one}."),
            (f"Il y a {a_one}, mais pas {of_other}.", f"Il y a {an_other}, mais pas {of_one}."),
            (f"Les {many} ne sont pas {all_} {are_so}.", f"Les {many} sont {all_} {are_so}."),
            (f"Il y avait autrefois {a_one}.", f"Il y a toujours {a_one}."),
            (f"Il y a {a_one} qui n'est pas {so}.", f"Il y a {a_one} qui est {so}."),
        ]


class Spanish(Language):
    # A negative word behind the verb takes "no" before it: "no hay ningún perro" [1] [2]. "ninguno" loses
    # its -o before a masculine noun and agrees in gender; "no" before the quantifier, or before the verb of
    # the relative clause, denies that alone; "de" and "el" are one word [2].
    code, title, untrue = "es", "Spanish", "Lo siguiente no es cierto: {}"
    sources = (
        _CONCORD,
        "RAE and ASALE, Nueva gramática de la lengua española (2009): chapter 48, La negación; the adjective",
    )
    #: Gender, singular, plural.
    nouns: ClassVar = {
        "airplane": ("m", "avión", "aviones"), "apple": ("f", "manzana", "manzanas"),
        "banana": ("m", "plátano", "plátanos"), "bench": ("m", "banco", "bancos"),
        "bicycle": ("f", "bicicleta", "bicicletas"), "bird": ("m", "pájaro", "pájaros"),
        "boat": ("m", "barco", "barcos"), "book": ("m", "libro", "libros"),
        "bottle": ("f", "botella", "botellas"), "bus": ("m", "autobús", "autobuses"),
        "cake": ("m", "pastel", "pasteles"), "car": ("m", "coche", "coches"), "cat": ("m", "gato", "gatos"),
        "chair": ("f", "silla", "sillas"), "cup": ("f", "taza", "tazas"), "dog": ("m", "perro", "perros"),
        "kite": ("f", "cometa", "cometas"), "pizza": ("f", "pizza", "pizzas"),
        "sheep": ("f", "oveja", "ovejas"), "teddy bear": ("m", "oso de peluche", "osos de peluche"),
        "umbrella": ("m", "paraguas", "paraguas"),
    }  # fmt: skip
    #: Masculine and feminine, singular, then plural.
    colours: ClassVar = {
        "red": ("rojo", "roja", "rojos", "rojas"), "orange": ("naranja", "naranja", "naranjas", "naranjas"),
        "yellow": ("amarillo", "amarilla", "amarillos", "amarillas"),
        "green": ("verde", "verde", "verdes", "verdes"), "blue": ("azul", "azul", "azules", "azules"),
        "purple": ("morado", "morada", "morados", "moradas"), "pink": ("rosa", "rosa", "rosas", "rosas"),
        "brown": ("marrón", "marrón", "marrones", "marrones"),
        "black": ("negro", "negra", "negros", "negras"), "grey": ("gris", "gris", "grises", "grises"),
        "white": ("blanco", "blanca", "blancos", "blancas"), "tan": ("beige", "beige", "beiges", "beiges"),
    }  # fmt: skip

    def sentences(self, a: Forms, b: Forms, colour: Forms, second: Forms) -> Pairs:
        many, form = a[2], int(a[0] == "f")
        one, other = (f"{'una' if noun[0] == 'f' else 'un'} {noun[1]}" for noun in (a, b))
        no_one, no_other = (f"{'ninguna' if noun[0] == 'f' else 'ningún'} {noun[1]}" for noun in (a, b))
        is_so, are_so, so = colour[form], colour[form + 2], second[form]
        the, of_the, all_, others = (
            ("el", "del", "todos los", "otros"), ("la", "de la", "todas las", "otras"),
        )[form]  # fmt: skip
        return [
            (f"No hay {no_one} excepto {the} {is_so}.", f"Hay {others} {many} además {of_the} {is_so}."),
            (f"No hay ni {one} ni {other}.", f"Hay {other}, pero no hay {no_one}."),
            (f"Hay {one}, pero no hay {no_other}.", f"Hay {other}, pero no hay {no_one}."),
            (f"No {all_} {many} son {are_so}.", f"{all_} {many} son {are_so}."),
            (f"Antes había {one}.", f"Todavía hay {one}."),
            (f"Hay {one} que no es {so}.", f"Hay {one} que es {so}."),
        ]


class Russian(Language):
    # What is not there stands in the genitive behind "нет", and in the nominative behind "есть"; "кроме"
    # governs the genitive [1]. Negative words take the predicate's negation beside them, here "нет" [2].
    # There is no copula in the present [3]; "не" stands before what it denies, and before "все" it denies
    # the quantifier. The past agrees in gender, "который" too; "синий" has soft endings [1].
    code, title, untrue = "ru", "Russian", "Следующее неверно: {}"
    sources = (
        "Wade, A Comprehensive Russian Grammar (3rd edition, 2011): the genitive, negation, the adjective",
        _CONCORD,
        "Stassen, Zero Copula for Predicate Nominals, WALS Online, chapter 120 (https://wals.info/chapter/120)",
    )
    #: Gender, nominative, genitive, plural.
    nouns: ClassVar = {
        "airplane": ("m", "самолёт", "самолёта", "самолёты"), "apple": ("n", "яблоко", "яблока", "яблоки"),
        "banana": ("m", "банан", "банана", "бананы"), "bench": ("f", "скамейка", "скамейки", "скамейки"),
        "bicycle": ("m", "велосипед", "велосипеда", "велосипеды"), "bird": ("f", "птица", "птицы", "птицы"),
        "boat": ("f", "лодка", "лодки", "лодки"), "book": ("f", "книга", "книги", "книги"),
        "bottle": ("f", "бутылка", "бутылки", "бутылки"), "bus": ("m", "автобус", "автобуса", "автобусы"),
        "cake": ("m", "торт", "торта", "торты"), "car": ("f", "машина", "машины", "машины"),
        "cat": ("f", "кошка", "кошки", "кошки"), "chair": ("m", "стул", "стула", "стулья"),
        "cup": ("f", "чашка", "чашки", "чашки"), "dog": ("f", "собака", "собаки", "собаки"),
        "kite": ("m", "воздушный змей", "воздушного змея", "воздушные змеи"),
        "pizza": ("f", "пицца", "пиццы", "пиццы"), "sheep": ("f", "овца", "овцы", "овцы"),
        "teddy bear": ("m", "плюшевый мишка", "плюшевого мишки", "плюшевые мишки"),
        "umbrella": ("m", "зонт", "зонта", "зонты"),
    }  # fmt: skip
    #: Stems.
    colours: ClassVar = {
        "red": "красн", "orange": "оранжев", "yellow": "жёлт", "green": "зелён", "blue": "син",
        "purple": "фиолетов", "pink": "розов", "brown": "коричнев", "black": "чёрн", "grey": "сер",
        "white": "бел", "tan": "бежев",
    }  # fmt: skip
    #: Gender -> nominative and genitive of the adjective; "was", "which" and "not one".
    _FORMS: ClassVar = {
        "m": ("ый", "ого", "был", "который", "ни одного"), "f": ("ая", "ой", "была", "которая", "ни одной"),
        "n": ("ое", "ого", "было", "которое", "ни одного"),
    }  # fmt: skip
    _SOFT: ClassVar = {"ый": "ий", "ая": "яя", "ое": "ее", "ого": "его", "ой": "ей", "ые": "ие"}

    def sentences(self, a: Forms, b: Forms, colour: str, second: str) -> Pairs:
        (gender, one, of_one, many), (_, other, of_other, _) = a, b
        ending, of_ending, was, which, not_one = self._FORMS[gender]
        but_one, so = f"кроме {self._with(colour, of_ending)}", self._with(second, ending)
        are_so = self._with(colour, "ые")
        return [
            (f"Нет {not_one} {of_one}, {but_one}.", f"Есть и другие {many}, {but_one}."),
            (f"Нет ни {of_one}, ни {of_other}.", f"Есть {other}, но нет {of_one}."),
            (f"Есть {one}, но нет {of_other}.", f"Есть {other}, но нет {of_one}."),
            (f"Не все {many} {are_so}.", f"Все {many} {are_so}."),
            (f"Раньше здесь {was} {one}.", f"Здесь всё ещё есть {one}."),
            (f"Есть {one}, {which} не {so}.", f"Есть {one}, {which} {so}."),
        ]

    def _with(self, stem: str, ending: str) -> str:
        return stem + (self._SOFT[ending] if stem == "син" else ending)
